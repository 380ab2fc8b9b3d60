"""`vdbg-env verify`: exit status, what it prints where, and its help."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gpucore.elf import ET_CORE
from gpucore.fatbin import EntryKind
from tests.builders.cubin import cubin
from tests.builders.elf import ElfSpec, build_elf
from tests.builders.fatbin import EM_X86_64, EntrySpec, container, host_library
from tests.support.command_line import vdbg_env
from tests.support.golden import assert_golden

GOOD = host_library(container(EntrySpec(payload=cubin("k", lines=True))))
BAD = host_library(container(EntrySpec(payload=cubin("k"))))
PTX = host_library(container(EntrySpec(payload=b".version 9.0", kind=EntryKind.PTX)))


@pytest.mark.parametrize(
    ("data", "status", "verdict"),
    [(GOOD, 0, "full"), (BAD, 3, "none"), (PTX, 4, "no-device-code"), (GOOD[:-100], 2, "unreadable")],
)
def test_the_exit_status_says_the_verdict(tmp_path: Path, data: bytes, status: int, verdict: str) -> None:
    (tmp_path / "lib.so").write_bytes(data)
    ran = vdbg_env("verify", "--witness", "none", str(tmp_path / "lib.so"))
    assert (ran.status, ran.stderr) == (status, "")
    assert f"verdict: {verdict}" in ran.stdout
    assert vdbg_env("verify", "--witness", "none", "-q", str(tmp_path / "lib.so")) == type(ran)(status, "", "")


def test_several_targets_and_folders_are_one_proof(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "good.so").write_bytes(GOOD)
    (tmp_path / "folder" / "host.so").write_bytes(host_library())
    (tmp_path / "bad.so").write_bytes(BAD)
    ran = vdbg_env("verify", "--json", "--witness", "none", str(tmp_path / "folder"), str(tmp_path / "bad.so"))
    proof = json.loads(ran.stdout)
    assert (ran.status, proof["schema"], proof["verdict"]) == (3, "vdbg-env/verify/v1", "partial")
    assert [Path(f["path"]).name for f in proof["files"]] == ["good.so", "bad.so"]
    assert proof["without_device_code"] == 1


def test_a_core_dump_that_is_found_is_no_library_and_one_that_is_named_is_refused(tmp_path: Path) -> None:
    (tmp_path / "good.so").write_bytes(GOOD)
    (tmp_path / "core.cuda.1").write_bytes(build_elf(ElfSpec(type=ET_CORE)))
    (tmp_path / "core.1").write_bytes(build_elf(ElfSpec(type=ET_CORE, machine=EM_X86_64)))
    with zipfile.ZipFile(tmp_path / "own.whl", "w") as wheel:
        wheel.write(tmp_path / "core.cuda.1", "recordings/core.cuda.1")
    ran = vdbg_env("verify", "--json", "--witness", "none", str(tmp_path))
    proof = json.loads(ran.stdout)
    assert (ran.status, proof["verdict"], proof["cores"]) == (0, "full", 3)
    assert [Path(f["path"]).name for f in proof["files"]] == ["good.so"]
    named = vdbg_env("verify", str(tmp_path / "core.cuda.1"))
    assert named.status == 2
    assert "a GPU core dump, not a library\n  try: vdbg-env core FILE" in named.stdout


def test_a_target_that_is_neither_file_nor_image_says_what_to_type() -> None:
    ran = vdbg_env("verify", "no/such/lib.so")
    assert ran.status == 2
    assert "no/such/lib.so is neither a file or folder here nor an image" in ran.stderr
    assert "try: ls -l no/such/lib.so, or docker pull no/such/lib.so" in ran.stderr


@pytest.mark.parametrize(
    ("target", "look"),
    [("/nope", "/"), ("/no/such/lib.so", "/no/such/lib.so"), ("./a b.so", "."), ("../x/y", "../x/y"),
     ("~nobody", "'~nobody'"), ("made/lib.so", "made"), ("made/sub/", "made")],
)  # fmt: skip
def test_a_path_that_is_not_there_is_not_taken_for_an_image(
    target: str, look: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made").mkdir()
    monkeypatch.chdir(tmp_path)
    ran = vdbg_env("verify", target)
    assert ran.status == 2 and f"{target} is not there" in ran.stderr
    assert f"try: ls -l {look}\n" in ran.stderr and "docker" not in ran.stderr


@pytest.mark.parametrize("target", ["made/image:1", "made/image:1:/opt", f"made/image@sha256:{'0' * 64}", "image"])
def test_what_may_be_an_image_is_asked_of_the_engine(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    ran = vdbg_env("verify", target)
    assert ran.status == 2 and f"or docker pull {target.removesuffix(':/opt')}\n" in ran.stderr


def test_no_target_is_bad_usage() -> None:
    assert vdbg_env("verify").status == 2


def test_the_help() -> None:
    assert_golden("cli/verify.txt", vdbg_env("verify", "--help").stdout)


@pytest.mark.parametrize("argv", [["verify", "--witness", "none", "{}"], ["locate", "k", "{}"]])
@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_shows_how_far_it_is_and_nothing_else_does(tmp_path: Path, argv: list[str], terminal: bool) -> None:
    for number in range(3):
        (tmp_path / f"lib{number}.so").write_bytes(GOOD)
    ours, theirs = os.openpty() if terminal else os.pipe()
    words = [word.format(tmp_path) for word in argv]
    with os.fdopen(ours, "rb", buffering=0) as seen:
        ran = subprocess.run(
            [sys.executable, "-m", "vdbg_env", *words], stdout=subprocess.PIPE, stderr=theirs, timeout=60, check=False,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "60"},
        )  # fmt: skip
        os.write(theirs, b"end")
        shown = b""
        while not shown.endswith(b"end"):
            shown += seen.read(1 << 16)
        os.close(theirs)
    assert b"\x1b" not in ran.stdout
    if terminal:
        assert shown.startswith(b"\r[------------------------]   0% ")
        assert b"lib0.so\x1b[K" in shown
        assert shown.endswith(b"\r\x1b[Kend")
        assert max(len(line) for line in shown.split(b"\r")) < 60 + len(b"\x1b[Kend")
    else:
        assert shown == b"end"
