"""Evidence becomes test data with its provenance, within limits, or is refused with the reason."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.machine import MARK
from tests.gpu.needs import ROOT

WHERE = "seen on NVIDIA H100 80GB HBM3, sm_90, driver 580.95.05"


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    folder = tmp_path / "gpu-evidence"
    for name in ("cores/two-ranks", "text", "runs", "recording/steps/coredump/1/node-0"):
        (folder / name).mkdir(parents=True)
    (folder / "measured.json").write_text(json.dumps({"where": WHERE}))
    (folder / "versions.txt").write_text("$ nvcc --version\nCuda compilation tools, release 13.0, V13.0.88\n")
    for name in ("table.md", "answers.md", "text/progress-trap.txt", "runs/trap.json"):
        (folder / name).write_text("what was seen\n")
    (folder / "cores" / "run-trap.nvcudmp").write_bytes(b"\x7fELF" + bytes(5000))
    (folder / "cores" / "two-ranks" / "core.cuda.node.7.nvcudmp").write_bytes(b"\x7fELF")
    (folder / "recording" / "recording.json").write_text(json.dumps({"recorded_on": WHERE, "synthetic": False}))
    (folder / "recording" / "steps" / "coredump" / "1" / "node-0" / "stderr").write_text("at /src/samples/x.cu\n")
    (folder / "recording" / "steps" / "coredump" / "cuda-gdb.txt").write_text("of /tmp/cuda-dbg/1/elf\n")
    return folder


def imported(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "import-gpu-evidence"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_cores_and_texts_are_taken_with_their_provenance(evidence: Path, tmp_path: Path) -> None:
    done = imported(evidence, "--data", tmp_path / "data")
    taken = tmp_path / "data" / "nvidia-h100-80gb-hbm3-sm-90-driver-580-95-05"
    assert done.returncode == 0 and taken.is_dir(), done.stdout + done.stderr
    page = (taken / "README.md").read_text()
    assert page.startswith(f"# {WHERE}\n") and "release 13.0, V13.0.88" in page and "Left out" not in page
    assert gzip.decompress((taken / "cores" / "run-trap.nvcudmp.gz").read_bytes())[:4] == b"\x7fELF"
    assert (taken / "cores" / "two-ranks" / "core.cuda.node.7.nvcudmp.gz").exists()
    assert (taken / "text" / "progress-trap.txt").exists() and (taken / "runs" / "trap.json").exists()


def test_what_is_too_large_is_left_out_and_named(evidence: Path, tmp_path: Path) -> None:
    (evidence / "cores" / "flags-none.nvcudmp").write_bytes(b"\x7fELF" + os.urandom(2 << 20))
    (evidence / "text" / "memcheck.xml").write_text("x" * 70_000)
    assert imported(evidence, "--data", tmp_path, "--name", "h100").returncode == 0
    page = (tmp_path / "h100" / "README.md").read_text()
    assert "text/memcheck.xml: 70000 bytes, 65536 at most" in page and "cores/flags-none.nvcudmp.gz: " in page
    assert not (tmp_path / "h100" / "cores" / "flags-none.nvcudmp.gz").exists()


def test_what_names_a_folder_of_that_machine_is_left_out(evidence: Path, tmp_path: Path) -> None:
    (evidence / "cores" / "run-hang.nvcudmp").write_bytes(b"\x7fELF\0/work/samples/hang.cu\0")
    (evidence / "text" / "progress-hang.txt").write_text("coredump: Writing ELF file to /tmp/w/hang.nvcudmp\n")
    with (evidence / "versions.txt").open("a") as versions:
        versions.write("|    0   N/A  N/A    663      C   /home/me/train   526MiB |\n")
    assert imported(evidence, "--data", tmp_path, "--name", "h100").returncode == 0
    page = (tmp_path / "h100" / "README.md").read_text()
    for name in ("cores/run-hang.nvcudmp.gz", "text/progress-hang.txt"):
        assert f"{name}: names a folder of that machine" in page and not (tmp_path / "h100" / name).exists()
    kept = (tmp_path / "h100" / "versions.txt").read_text()
    assert "V13.0.88" in kept and "/home/me" not in kept


def test_only_what_is_asked_for_is_taken(evidence: Path, tmp_path: Path) -> None:
    assert imported(evidence, "--data", tmp_path, "--name", "h100", "--only", "cores/run-*").returncode == 0
    taken = {str(path.relative_to(tmp_path / "h100")) for path in (tmp_path / "h100").rglob("*") if path.is_file()}
    always = {"README.md", "versions.txt", "table.md", "answers.md", "measured.json"}
    assert taken == {"cores/run-trap.nvcudmp.gz", *always}


@pytest.mark.parametrize("name", ["versions.txt", "measured.json"])
def test_evidence_without_provenance_is_refused(name: str, evidence: Path, tmp_path: Path) -> None:
    (evidence / name).unlink()
    done = imported(evidence, "--data", tmp_path / "data")
    assert done.returncode == 2 and f"{name} are missing" in done.stderr and not (tmp_path / "data").exists()


def test_a_rehearsed_file_among_genuine_ones_is_refused(evidence: Path, tmp_path: Path) -> None:
    (evidence / "cores" / "run-x.nvcudmp.gz").write_bytes(gzip.compress(b"\x7fELF" + MARK.encode()))
    done = imported(evidence, "--data", tmp_path / "data")
    assert done.returncode == 2 and "comes from a rehearsal" in done.stderr


def test_nothing_is_written_over(evidence: Path, tmp_path: Path) -> None:
    assert imported(evidence, "--data", tmp_path, "--name", "h100").returncode == 0
    assert imported(evidence, "--data", tmp_path, "--name", "h100").returncode == 2


def test_a_recording_takes_the_place_of_another_without_what_is_read_anew(evidence: Path, tmp_path: Path) -> None:
    target = tmp_path / "recordings"
    (target / "steps" / "old").mkdir(parents=True)
    done = imported(evidence, "--data", tmp_path, "--name", "h100", "--recording", target)
    assert done.returncode == 0, done.stderr
    files = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
    assert files == ["recording.json", "steps/coredump/1/node-0/stderr"]


def test_a_recording_that_names_the_machines_paths_is_refused(evidence: Path, tmp_path: Path) -> None:
    (evidence / "recording" / "steps" / "coredump" / "1" / "node-0" / "stderr").write_text("at /home/me/x.cu:1\n")
    done = imported(evidence, "--data", tmp_path, "--name", "h100", "--recording", tmp_path / "recordings")
    assert done.returncode == 2 and "names /home/me/x.cu:1" in done.stderr
    assert not (tmp_path / "recordings").exists()
