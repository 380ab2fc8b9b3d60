"""The house stands as drawn: imports run one way, and the pure rooms know nothing of the outside."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "builder" / "vdbg_env"

# Room -> the rooms it may import, from the ground up. A module beside the rooms (errors.py) is a room of its own.
ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "resources": set(),
    "yaml_source": {"errors"},
    "console": {"errors"},
    "cuda": {"errors"},
    "image": {"errors", "yaml_source"},
    "evidence": {"cuda", "errors", "yaml_source"},
    "runbook": {"evidence", "cuda", "errors", "yaml_source"},
    "record": {"runbook", "evidence", "cuda", "errors"},
    "report": {"record", "runbook", "evidence", "image", "cuda", "errors"},
    "application": {"report", "record", "runbook", "evidence", "image", "cuda", "errors", "resources", "yaml_source"},
    "engines": {"application", "record", "runbook", "evidence", "image", "cuda", "errors"},
    "cli": {
        "application", "engines", "report", "record", "runbook", "evidence", "image", "cuda",
        "errors", "resources", "console", "yaml_source",
    },
}  # fmt: skip
# __init__.py holds the version, __main__.py starts the command line, fire_pipes.py is a small program of its own.
ENTRANCE = {"", "__main__", "fire_pipes"}

PURE = {"cuda", "image", "evidence", "runbook", "yaml_source"}
PORTS = {"ports", "build_events", "host_facts"}  # what of the application its engines may know
OUTSIDE = {"click", "docker", "subprocess", "socket", "os", "shutil", "rich", "signal", "threading", "multiprocessing"}


def room(module: Path) -> str:
    parts = module.relative_to(PACKAGE).with_suffix("").parts
    return "" if parts == ("__init__",) else parts[0]


def imports(module: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: relative imports hide the arrow"
            names = [f"{node.module}.{a.name}" for a in node.names] if node.module == "vdbg_env" else [node.module]
            yield from ((node.lineno, name or "") for name in names)


MODULES = sorted(PACKAGE.rglob("*.py"))


def wrong_arrows(module: Path) -> list[str]:
    here = room(module)
    if here in ENTRANCE:
        return []
    wrong = []
    for line, name in imports(module):
        parts = name.split(".")
        where = f"{module.relative_to(PACKAGE)}:{line}: {name}"
        if parts[0] == "vdbg_env":
            target = parts[1] if len(parts) > 1 else ""
            if target in ENTRANCE or target == "__version__":
                continue
            if target != here and target not in ARROWS[here]:
                wrong.append(f"{where}: {here} may not import {target}")
            if target == "engines" and here == "cli" and module.name != "wiring.py":
                wrong.append(f"{where}: engines are made in cli/wiring.py only")
            if (
                here == "engines"
                and target == "application"
                and parts[2:3] not in (["ports"], ["build_events"], ["host_facts"])
            ):
                wrong.append(f"{where}: of the application, engines know the ports only")
        elif here in PURE and parts[0] in OUTSIDE:
            wrong.append(f"{where}: {here} is pure")
    return wrong


@pytest.mark.parametrize("module", MODULES, ids=lambda m: str(m.relative_to(PACKAGE)))
def test_imports_follow_the_arrows(module: Path) -> None:
    assert wrong_arrows(module) == []


def test_every_room_is_drawn() -> None:
    assert {room(m) for m in MODULES} - ENTRANCE == set(ARROWS)


def test_a_wrong_arrow_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.test_arrows.PACKAGE", tmp_path)
    planted = tmp_path / "cuda" / "bad.py"
    planted.parent.mkdir()
    planted.write_text("import subprocess\nfrom vdbg_env.cli import main\nfrom vdbg_env import application\n")
    assert len(wrong_arrows(planted)) == 3


def test_no_arrow_runs_back() -> None:
    order = list(ARROWS)
    assert all(order.index(target) < order.index(here) for here, targets in ARROWS.items() for target in targets)
