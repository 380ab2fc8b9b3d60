"""`vdbg-env verify`: exit status, what it prints where, and its help."""

import json
from pathlib import Path

import pytest

from tests.builders.cubin import cubin
from tests.builders.fatbin import EntrySpec, container, host_library
from tests.support.command_line import vdbg_env
from tests.support.golden import assert_golden
from vdbg_env.cuda.binary.fatbin import EntryKind

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
