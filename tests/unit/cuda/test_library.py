"""The public names of `vdbg_env.cuda`: all there, all documented, none loaded before it is used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import vdbg_env.cuda as library
from tests.builders.cubin import cubin
from tests.builders.fatbin import EntrySpec, container, host_library

GUIDE = Path(__file__).parents[3] / "docs" / "05-library.md"


@pytest.mark.parametrize("name", sorted(library._HOME))
def test_every_public_name_is_there_typed_and_in_the_guide(name: str) -> None:
    assert getattr(library, name).__doc__
    assert name in dir(library)
    assert f"`{name}" in GUIDE.read_text()
    tree = ast.parse(Path(library.__file__).read_text())
    typed = {alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert name in typed


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        library.__getattr__("nothing")


def test_importing_the_room_loads_no_decompressor() -> None:
    code = "import sys, vdbg_env.cuda; sys.exit('zstandard' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, env={"PYTHONPATH": "builder"}).returncode == 0


def test_a_library_is_verified_in_one_call() -> None:
    from vdbg_env.cuda import Verdict, verify

    data = host_library(container(EntrySpec(payload=cubin("_Z1kPf"))))
    report = verify(data, "lib.so")
    assert (report.path, report.verdict, report.missing[0].kernels) == ("lib.so", Verdict.NONE, ("_Z1kPf",))
