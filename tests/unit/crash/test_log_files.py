"""Logs: compressed, cut, missing, on the standard input; a folder gives none of the records that we made in it."""

import bz2
import gzip
import io
import lzma
import os
import random
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from tests.support.command_line import vdbg_env, vdbg_env_without_rights
from tests.support.cubins import cubin
from vdbg_env.common.errors import BadInput
from vdbg_env.crash.triage import open_logs, triage_logs
from vdbg_env.record.run_directory import RunDirectory, RunHead


def names(folder: Path) -> list[str]:
    return [str(Path(log.name).relative_to(folder)) for log in open_logs([str(folder)])]


def test_our_own_runs_below_a_folder_are_passed_over_and_a_run_that_is_named_is_read(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "vdbg-runs" / "r")
    run.create()
    run.write_head(RunHead(run="r", runbook="x"))
    attempt = run.attempt("baseline", 1, "n-0")
    attempt.mkdir(parents=True)
    (attempt / "stdout").write_text("CUDA error")
    with pytest.raises(BadInput, match="holds no file of a workload"):
        names(tmp_path)
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "rank-0.log").write_text("well")
    (tmp_path / "server.log").write_text("well")
    assert names(tmp_path) == ["ranks/rank-0.log", "server.log"]
    assert names(run.path) == ["steps/baseline/1/n-0/stdout"]


def content(target: str) -> bytes:
    return b"".join(chunk for log in open_logs([target]) for chunk in log.chunks)


@pytest.mark.parametrize("end", ["", ".zst", ".gz", ".xz", ".bz2"])
def test_a_core_that_was_copied_with_its_log_is_named_where_it_is(tmp_path: Path, end: str) -> None:
    log, core = tmp_path / "server.log", tmp_path / f"core.0{end}"
    log.write_text("[00:40:46.806153] coredump: Writing ELF file to /of/another/machine/core.0\n")
    assert "next: vdbg-env core /of/another/machine/core.0\n" in vdbg_env("triage", str(log)).stdout
    core.write_bytes(b"")
    assert f"next: vdbg-env core {core}\n" in vdbg_env("triage", str(log)).stdout


CORE = Path(__file__).parents[2] / "data" / "cores" / "synthetic_sm90_hang.nvcudmp.gz"
LOG = b"".join(b"line %d: CUDA error\n" % number for number in range(5000))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress, lzma.compress, bz2.compress])
def test_a_log_is_decompressed_by_its_first_bytes_member_after_member(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(pack(LOG) + pack(LOG))
    assert content(str(path)) == LOG + LOG


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress, lzma.compress, bz2.compress])
def test_a_log_that_is_cut_or_damaged_is_said_to_be(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    whole = pack(LOG)
    path = tmp_path / "server.log"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInput, match="is damaged: it ends in the middle"):
        content(str(path))
    path.write_bytes(whole[:20] + bytes(40) + whole[60:])
    with pytest.raises(BadInput, match="is damaged"):
        content(str(path))


def test_of_a_log_that_went_well_no_more_is_said_than_it_shows(tmp_path: Path) -> None:
    """It was called finished, where it may have been cut in the middle of work."""
    log = tmp_path / "server.log"
    log.write_text("INFO:     Waiting for application startup.\nINFO:     Application startup complete.\n")
    ran = vdbg_env("triage", str(log))
    first = "no failure found: the log shows work, {}  (class not-a-gpu-failure; confidence 96%)\n\n"
    first += f"  {log}:2\n    Application startup complete.\n"
    assert (ran.status, ran.stdout) == (0, first.format("but not how it ended"))
    with log.open("a") as file:
        file.write("INFO:     Shutting down\nINFO:     Application shutdown complete.\n")
    ran = vdbg_env("triage", str(log))
    assert (ran.status, ran.stdout) == (0, first.format("and an orderly shutdown"))


def test_a_dash_is_the_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    with os.fdopen(write, "wb") as sent:
        sent.write(gzip.compress(LOG))
    with os.fdopen(read) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert content("-") == LOG


def test_a_log_that_is_not_there_gives_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist") as refused:
        content(str(tmp_path / "server.log"))
    assert refused.value.next_step


@pytest.mark.parametrize("order", ["le", "be"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_utf_16_as_powershell_writes_it_is_read_as_utf_8(
    tmp_path: Path, order: str, pack: Callable[[bytes], bytes]
) -> None:
    """Long enough for a character beyond 16 bits to lie across two chunks, and cut in the middle of the last one."""
    text = "x" + "\U0001f680 CUDA error: an illegal memory access was encountered\r\n" * 40_000
    (tmp_path / "pod.log").write_bytes(pack(f"\ufeff{text}".encode(f"utf-16-{order}") + b"\x00"))
    assert content(str(tmp_path)).decode() == text + "\ufffd"


@pytest.mark.parametrize("lost", [b"\0" * 300_000, b""], ids=["lost blocks", "none"])
@pytest.mark.parametrize("form", ["utf-8", "utf-16", "utf-16-be", "utf-16-le", "utf-32"])
def test_zero_bytes_hide_no_line(tmp_path: Path, form: str, lost: bytes) -> None:
    text = "INFO start\nCUDA error: an illegal memory access was encountered\n"
    (tmp_path / "a.log").write_bytes(text.encode(form) + lost)
    assert content(str(tmp_path / "a.log")) == text.encode()


@pytest.mark.parametrize(
    ("make", "kind", "command"),
    [
        (lambda: gzip.decompress(CORE.read_bytes()), "the core dump of a GPU", "vdbg-env core"),
        (CORE.read_bytes, "the core dump of a GPU", "vdbg-env core"),
        (lambda: Path(sys.executable).read_bytes(), "a program or a library", "vdbg-env verify"),
        (lambda: cubin("inline_chain_sm90"), "device code", "vdbg-env verify"),
        (lambda: packed(zipfile.ZipFile), "an archive", "unpack"),
        (lambda: gzip.compress(packed(tarfile.TarFile)), "an archive", "unpack"),
        (lambda: random.Random(5).randbytes(40_000), "a binary file", "give a log file"),
    ],
    ids=["GPU core", "compressed GPU core", "program", "cubin", "zip", "tar.gz", "random"],
)  # fmt: skip
def test_a_file_that_is_no_log_is_named_with_the_command_that_reads_it(
    tmp_path: Path, make: Callable[[], bytes], kind: str, command: str
) -> None:
    (tmp_path / "no.log").write_bytes(make())
    with pytest.raises(BadInput, match=f"is {kind}, not a log") as refused:
        triage_logs([str(tmp_path)])
    assert refused.value.next_step
    assert refused.value.next_step.startswith(command)
    (tmp_path / "rank2.log").write_text("ValueError: of a rank\n")
    found = triage_logs([str(tmp_path)])
    assert f"{kind}, not a log; {command}" in found.notes[0]
    assert (found.failure.name, found.rank) == ("not-a-gpu-failure", 2)


def packed(kind: type[zipfile.ZipFile] | type[tarfile.TarFile]) -> bytes:
    data = io.BytesIO()
    if issubclass(kind, zipfile.ZipFile):
        with kind(data, "w") as archive:
            archive.writestr("server.log", LOG)
    else:
        with kind(fileobj=data, mode="w") as other:
            other.add(__file__)
    return data.getvalue()


FAULT = "RuntimeError: CUDA error: an illegal memory access was encountered\n"


@pytest.mark.parametrize(
    "name",
    ["rank11", "11", "rank11.LOG", "rank11.log.2026-11-26", "0.log.20261126-140311", "rank11.log.old", "log.11",
     "rank11.json", "nccl.node.4242", "train-11.o4242", "rank\n11.log"],
)  # fmt: skip
def test_a_file_of_a_folder_is_read_whatever_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "rank0.log").write_text("INFO step 1\n")
    (tmp_path / name).write_text(FAULT)
    found = triage_logs([str(tmp_path)])
    assert found.root_cause is not None
    assert found.root_cause.file == str(tmp_path / name)
    (tmp_path / name).write_bytes(gzip.compress(FAULT.encode()))
    assert triage_logs([str(tmp_path)]).failure.name == "illegal-memory-access"


def test_what_of_a_folder_is_not_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text("KeyError: 'x'\n")
    (tmp_path / "train.py").write_text(FAULT)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.log").symlink_to(tmp_path / "gone")
    found = triage_logs([str(tmp_path)])
    assert found.failure.name == "not-a-gpu-failure"
    told = "\n".join(found.notes)
    assert "not read (source code, settings or data): train.py" in told
    assert f"{tmp_path}/pipe is a pipe, a socket or a device" in told
    assert f"{tmp_path}/link.log cannot be read" in told


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root may read everything")
def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    (logs / "theirs").mkdir(parents=True)
    (logs / "rank0.log").write_text("KeyError: 'x'\n")
    (logs / "theirs").chmod(0)
    ran = vdbg_env_without_rights("triage", str(logs))
    assert f"{logs}/theirs cannot be read: Permission denied" in ran.stdout
    assert "KeyError" in ran.stdout
    (logs / "rank0.log").chmod(0)
    ran = vdbg_env_without_rights("triage", str(logs))
    assert (ran.status, "cannot be read: Permission denied" in ran.stderr) == (2, True)
    logs.chmod(0)
    ran = vdbg_env_without_rights("triage", str(logs))
    assert f"{logs} cannot be read: Permission denied" in ran.stderr
    logs.chmod(0o700)
    (logs / "theirs").chmod(0o700)
