"""The public names of `gpucore`: all there, all documented, none loaded before it is used."""

import ast
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import gpucore as library
from tests.builders.cubin import cubin
from tests.builders.fatbin import EntrySpec, container, host_library

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "builder" / "gpucore" / "README.md"


@pytest.mark.parametrize("name", sorted(library._HOME))
def test_every_public_name_is_there_typed_and_in_the_guide(name: str) -> None:
    assert getattr(library, name).__doc__
    assert name in dir(library)
    assert f"`{name}" in GUIDE.read_text()
    tree = ast.parse(Path(library.__file__).read_text())
    typed = {alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert name in typed


def test_no_public_name_is_that_of_a_module() -> None:
    """A module takes its name in the package when it is imported, and would stand there instead of the function."""
    modules = {path.stem for path in Path(library.__file__).parent.iterdir()}
    assert not modules & set(library._HOME)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        library.__getattr__("nothing")


def test_importing_the_room_loads_no_decompressor() -> None:
    code = "import sys, gpucore; sys.exit('zstandard' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, env={"PYTHONPATH": "builder"}).returncode == 0


def test_a_library_is_verified_in_one_call() -> None:
    from gpucore import Verdict, verify

    data = host_library(container(EntrySpec(payload=cubin("_Z1kPf"))))
    report = verify(data, "lib.so")
    assert (report.path, report.verdict, report.missing[0].kernels) == ("lib.so", Verdict.NONE, ("_Z1kPf",))


def examples() -> list[str]:
    """Return the programs in the guide: each run of indented lines that imports something."""
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", GUIDE.read_text(), flags=re.MULTILINE)
    return [textwrap.dedent(block) for block in blocks if "import " in block]


@pytest.mark.parametrize("program", examples(), ids=lambda p: p.strip().splitlines()[-1][:40])
def test_every_example_of_the_guide_runs_as_it_stands(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    exec(compile(program, str(GUIDE), "exec"), {})
    printed = capsys.readouterr().out
    told = re.search(r"# prints: (.*)", program)
    assert told is None or printed == f"{told[1]}\n"
    assert printed or [path.name for path in tmp_path.glob("*.cubin")] == ["0.sm_90.cubin"]
