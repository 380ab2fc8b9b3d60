"""What keeps the guard from being added to an image is reported, and soon."""

import sys
from pathlib import Path
from typing import cast

import pytest

from vdbg_env.build.buildkit import EngineBuilder
from vdbg_env.common.errors import BadInput, EngineFailed
from vdbg_env.common.programs import Completed
from vdbg_env.image.context import FileBytes
from vdbg_env.image.profile import OwnPackage
from vdbg_env_lines import swap

PACKAGE = OwnPackage(wheel=FileBytes(name="vdbg_env.whl", data=b""), requirements=("x",))


class Image:
    """An image whose Python ends like this."""

    def __init__(self, code: int, stdout: str = "", stderr: str = "") -> None:
        self.ended = Completed(argv=("python3",), code=code, stdout=stdout, stderr=stderr)

    def execute(self, image_id: str, argv: list[str]) -> Completed:
        return self.ended


def add(image: Image) -> str:
    return swap.add_guard(cast(EngineBuilder, image), "sha256:x", "python3", PACKAGE)


def test_a_python_that_does_not_start_is_named() -> None:
    with pytest.raises(EngineFailed, match="python3 of the image ended with status 127") as refused:
        add(Image(127, stderr="x\nlibpython3.so: cannot open shared object file"))
    assert refused.value.cause == "libpython3.so: cannot open shared object file"


@pytest.mark.parametrize("said", ["", "hello", "[3, 13]", '[3, 13, "x86_64 --index-url=x"]'], ids=repr)
def test_a_python_that_does_not_say_its_version_is_named(said: str) -> None:
    with pytest.raises(EngineFailed, match="its version is not known"):
        add(Image(0, stdout=said))


def test_an_index_that_does_not_respond_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(swap, "_FETCH_S", 0.1)
    with pytest.raises(BadInput, match="was not fetched within"):
        add(Image(0, stdout='[3, 13, "x86_64"]'))
