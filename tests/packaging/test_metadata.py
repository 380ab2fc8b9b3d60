"""What the package says of itself: what it needs, and where it is published."""

import ast
import importlib.util
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def named(requirements: list[str]) -> set[str]:
    return {re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", one, maxsplit=1)[0]).lower() for one in requirements}


def imported() -> set[str]:
    """Return the distributions that the package imports."""
    own = {"gpucore", "vdbg_env", "vdbg_env_lines", "vdbg_env_slurm", *sys.stdlib_module_names}
    modules: set[str] = set()
    for path in (ROOT / "builder").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import():
                    modules |= {one.name.partition(".")[0] for one in node.names}
                case ast.ImportFrom(module=str(module)):
                    modules.add(module.partition(".")[0])
    known = {**packages_distributions(), "backports": ["backports.tarfile"]}  # installed before Python 3.12 only
    return named([known[module][0] for module in modules - own])


def test_what_is_imported_is_declared_and_nothing_else() -> None:
    declared = named(PROJECT["dependencies"])
    for extra in ("capture", "mcp"):
        declared |= named(PROJECT["optional-dependencies"][extra])
    assert imported() == declared | {"pytest"}  # which is there where it loads its plugin


def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_lead_to_the_repository_once_its_address_is_set() -> None:
    text = "[page](docs/a.md) ![image](docs/b.png) [other](https://else.example/x) [here](#part)"
    assert hook().absolute_links(text, "https://host.example/x") == (
        "[page](https://host.example/x/blob/main/docs/a.md) ![image](https://host.example/x/raw/main/docs/b.png) "
        "[other](https://else.example/x) [here](#part)"
    )


def test_the_constants_are_read_without_running_the_package() -> None:
    known = hook().constants((ROOT / "builder" / "vdbg_env" / "__init__.py").read_text())
    assert {"REPOSITORY", "AUTHOR", "__version__"} <= known.keys()
