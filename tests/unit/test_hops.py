"""How many files a command enters: what a reader has to hold in mind to follow it from flags to exit status.

The budget is 14 files for core, 12 for verify, 10 for triage, 30 for build and 50 for a runbook, and 8 more for what a
bad address comes from and whose memory it is. One is not met: the explanation of an address enters 20. A limit is
never raised.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.core_builder import CUBINS, hang_core
from tests.unit.crash.test_core_memory import CASES, beside

ROOT = Path(__file__).parents[2]
REPLAYED = ROOT / "runbooks" / "recordings" / "illegal-memory-access"
# The explanation of an address and the owner of memory have a budget of their own.
APART = ("gpucore/sass", "gpucore/explain", "vdbg_env/crash/memory_")
COUNT = """
import os, sys, threading
sys.path.insert(0, sys.argv[1])
root, entered = sys.argv[1] + os.sep, []

def watch(frame, event, _):
    code = frame.f_code
    # Functions alone: flag 2 is missing on the bodies of modules and classes.
    if event == "call" and code.co_filename.startswith(root) and code.co_name[0] != "<" and code.co_flags & 2:
        path = code.co_filename[len(root):]
        if path not in entered:
            entered.append(path)

from vdbg_env import cli
out, sys.stdout = sys.stdout, open(os.devnull, "w")
sys.setprofile(watch)
threading.setprofile(watch)
status = cli.main(sys.argv[2:])
sys.setprofile(None)
threading.setprofile(None)
print(status, *entered, file=out)
"""


def entered(*argv: str, apart: bool = False) -> list[str]:
    """Return the files below builder/ in which a function ran, by first entry: those of APART alone, or all others."""
    command = [sys.executable, "-c", COUNT, str(ROOT / "builder"), *argv]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr
    status, *files = ran.stdout.split()
    assert status in {"0", "3"}, ran.stderr
    return [file for file in files if file.startswith(APART) is apart]


@pytest.mark.parametrize(("command", "most"), [("core", 14), ("verify", 12), ("triage", 10), ("runbook", 50)])
def test_a_command_enters_few_files(tmp_path: Path, command: str, most: int) -> None:
    core, log = tmp_path / "core.nvcudmp", tmp_path / "server.log"
    core.write_bytes(hang_core())
    log.write_text(
        "INFO 11-23 10:00:00 step\n" * 99 + "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    )
    argv = {
        "core": ["core", str(core)],
        "verify": ["verify", "--witness", "none", str(CUBINS / "inline_chain_sm90.cubin")],
        "triage": ["triage", str(log)],
        "runbook": ["runbook", REPLAYED.name, "--run-dir", str(tmp_path / "run"), "--replay", str(REPLAYED), "--", "x"],
    }
    files = entered(*argv[command])
    assert len(files) <= most, "\n".join(files)


def test_the_address_of_a_fault_enters_few_more_files(tmp_path: Path) -> None:
    files = entered("core", str(beside(tmp_path, CASES["key cache overrun"][0])), apart=True)
    assert "vdbg_env/crash/memory_map.py" in files
    assert len(files) <= 20, "\n".join(files)
