"""Commands that end in order while their log, their dumps or their processes show a failure: none is called well."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.memory_cgroup import memory_cgroup
from tests.support.patience import patience
from tests.unit.cli.runbook.test_guard import ended_by_sigterm, environment, guard_command, guarded, the_run
from tests.unit.evidence.test_flight_recorder import BOTH, dump, entry

DATA = Path(__file__).parents[3] / "data"
WATCHDOG = DATA / "nccl_watchdog_h100_torch_2_11.txt"
RECORD = DATA / "flight_recorder_h100_torch_2_11.pickle"
COLLECTIVE = "process group 0: rank 0 entered collective 5 (all_reduce of 65536), which did not end"
LINE = "/home/user/programs/distributed/nccl_________.py:90 in <module>"
PRINTS = """
import os, sys, time
{does}
sys.stderr.flush()
open("ready", "w").close()
time.sleep(600)
"""


def stopped(folder: Path, does: str) -> tuple[int, dict[str, Any] | None, dict[str, Any]]:
    """Have a guarded program do something and then wait, end it by SIGTERM; returns status, the line, the report."""
    status, stderr = ended_by_sigterm(folder, PRINTS.format(does=does))
    last = stderr.rstrip().rpartition(b"\n")[2]
    said = json.loads(last) if last.startswith(b'{"schema": "vdbg-env/guard') else None
    return status, said, json.loads((the_run(folder) / "report.json").read_bytes())


def prints(path: Path) -> str:
    return f"sys.stderr.write(open({str(path)!r}).read())"


def test_a_job_that_is_stopped_after_its_watchdog_gave_up_has_failed(tmp_path: Path) -> None:
    """What PyTorch 2.11 printed over NCCL on an H100: the job was called well."""
    status, said, report = stopped(tmp_path, prints(WATCHDOG))
    assert status == 143 and said is not None
    assert (said["verdict"], said["ended"]) == ("failed", {"by": "stopped", "code": None, "signal": 15})
    assert "Watchdog caught collective operation timeout" in said["found"]
    assert said["next"].startswith("vdbg-env runbook nccl-failure --from ")
    assert said["fingerprint"] == report["fingerprint"]["id"]
    page = (the_run(tmp_path) / "report.md").read_text()
    assert "11-27 01:07:18.881818941" in page and "ended well" not in page


def test_the_dump_of_a_watchdog_names_the_collective_that_its_log_is_about(tmp_path: Path) -> None:
    """Both are of one process on an H100."""
    copies = f"open(os.environ['TORCH_FR_DUMP_TEMP_FILE'] + '0', 'wb').write(open({str(RECORD)!r}, 'rb').read())"
    _, said, _ = stopped(tmp_path, f"{prints(WATCHDOG)}; {copies}")
    assert said is not None
    assert said["found"].startswith(f"processes could not talk to each other: {COLLECTIVE}: ")
    assert "Watchdog caught collective operation timeout" in said["found"]
    assert said["location"] == LINE
    assert said["next"].startswith("vdbg-env runbook nccl-failure --from ")


def test_the_dumps_of_a_watchdog_say_that_it_gave_up_and_who_is_missing(tmp_path: Path) -> None:
    """Their log may be lost: a full disk, or in the middle of what the limit keeps."""
    copies = "open(os.environ['TORCH_NCCL_DEBUG_INFO_TEMP_FILE'] + {!r}, 'wb').write(open({!r}, 'rb').read())"
    _, said, _ = stopped(tmp_path, copies.format("0", str(RECORD)))
    assert said is not None
    assert said["verdict"] == "failed"
    assert said["found"].startswith("PyTorch's watchdog gave up on a collective, and wrote its flight recorder: ")
    assert said["found"].endswith(COLLECTIVE)
    assert said["location"] == LINE
    assert said["next"].startswith("vdbg-env runbook nccl-failure --from ")
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    (ranks / "front").write_bytes(dump(*BOTH, entry(3, "all_reduce", [[8]])))
    (ranks / "behind").write_bytes(dump(*BOTH))
    assert pickle.loads((ranks / "behind").read_bytes())["entries"]
    both = "; ".join(copies.format(rank, str(ranks / name)) for rank, name in (("0", "front"), ("1", "behind")))
    _, said, _ = stopped(ranks, both)
    assert said is not None
    assert "missing: rank 1 (its last is 2, barrier)" in said["found"]


def test_torchrun_that_is_stopped_is_called_by_what_its_ranks_had_said(tmp_path: Path) -> None:
    """Both logs are torchrun's of PyTorch 2.13 over Gloo: the exception that it ends with is the signal itself."""
    for name, verdict in (("torchrun_sigterm", "passed"), ("torchrun_gloo_barrier", "failed")):
        folder = tmp_path / name
        folder.mkdir()
        log = DATA / f"{name}.txt"
        does = f"import signal; signal.signal(15, lambda *_: ({prints(log)}, os._exit(1)))"
        _, said, report = stopped(folder, does)
        assert report["verdict"] == verdict
        assert (said is not None) is (verdict == "failed")
        if said:
            assert "Rank 1 failed to pass monitoredBarrier" in said["found"]
            assert said["next"].startswith("vdbg-env runbook nccl-failure --from ")


def test_a_death_by_a_signal_has_its_python_stack_in_every_report(tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text("import os\ndef inner():\n    os.kill(os.getpid(), 11)\n")
    done = guarded(tmp_path, f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import deep; deep.inner()")
    assert done.said and done.said["location"] == f"{tmp_path}/deep.py:3 in inner"
    run, line = the_run(tmp_path), f"{tmp_path}/deep.py:3 in inner"
    shown = subprocess.run(
        [sys.executable, "-m", "vdbg_env", "runs", "report", run], capture_output=True, text=True, check=False
    )
    for text in ((run / "report.md").read_text(), (run / "report.html").read_text(), shown.stdout):
        assert line in " ".join(text.split()), text


def test_the_line_that_raised_is_the_location_of_a_python_exception(tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text("def inner():\n    raise ValueError('boom')\n")
    done = guarded(tmp_path, f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import deep; deep.inner()")
    assert done.said and done.said["found"] == "ValueError: boom"
    assert done.said["location"] == f"{tmp_path}/deep.py:2 in inner"


def test_the_frames_of_a_cuda_error_are_on_the_terminal_too(tmp_path: Path) -> None:
    """Its place is mostly wrong and is not called one, but a report without any frame is none to start from."""
    raised = 'raise RuntimeError("CUDA error: an illegal memory access was encountered")'
    (tmp_path / "deep.py").write_text(f"def inner():\n    {raised}\n")
    done = guarded(tmp_path, f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import deep; deep.inner()")
    assert done.said and done.said["location"] is None
    command = [sys.executable, "-m", "vdbg_env", "runs", "report", str(the_run(tmp_path))]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"raised {tmp_path}/deep.py:2 in inner" in " ".join(shown.stdout.split())


def test_the_dump_that_a_hang_is_asked_for_is_no_illegal_access(tmp_path: Path) -> None:
    """What the driver prints of it on an H100, whose process was ended before it could say that it was done."""
    code = "import sys, time; print('coredump: Starting GPU coredump generation', file=sys.stderr, flush=True)\n"
    code += "while True: print('No available shared memory broadcast block found in 60 seconds.', flush=True)"
    done = guarded(tmp_path, f"{code}; time.sleep(0.5)", "--hang-after", "2s")
    assert done.said and done.said["verdict"] == "hang"
    assert done.said["next"].startswith("vdbg-env runbook kernel-hang --from ")
    report = (the_run(tmp_path) / "report.md").read_text()
    assert "a kernel made an exception" not in report
    assert f"`{done.said['next']}`" in report, "the report ends with the same"
    notes = json.loads((the_run(tmp_path) / "report.json").read_bytes())["steps"][0]["notes"]
    assert any("no Python stack was taken" in note for note in notes) == (shutil.which("py-spy") is None)


CHILD = """
import os, sys, time
child = os.fork()
if child == 0:
    time.sleep(0.8)
    {end}
os.waitpid(child, 0)
{after}
"""


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT])
@pytest.mark.parametrize("log", [True, False], ids=["python", "silent"])
def test_a_child_that_crashed_is_told_and_the_status_0_stays(tmp_path: Path, log: bool, number: signal.Signals) -> None:
    """Python's fault handler prints why; a program without it, or whose output is lost, leaves its end alone."""
    code = CHILD.format(end=f"os.kill(os.getpid(), {number})", after="")
    more = {} if log else {"PYTHONFAULTHANDLER": ""}
    done = guarded(tmp_path, code, "--exit-status-on-crash", "70", **more)
    assert done.status == 0 and done.said is not None
    assert (done.said["verdict"], done.said["ended"]["code"]) == ("warned", 0)
    assert f"was ended by {number.name}" in done.said["found"]
    report = json.loads((the_run(tmp_path) / "report.json").read_bytes())
    assert report["why"].startswith("it ended with status 0, but ")
    assert "nothing wrong" not in (the_run(tmp_path) / "report.md").read_text().lower()


def test_a_server_that_started_a_crashed_child_again_is_warned_of_when_it_is_stopped(tmp_path: Path) -> None:
    crash = "child = os.fork()\nif not child: time.sleep(0.8); os.kill(os.getpid(), 11)\nos.waitpid(child, 0)"
    status, said, _ = stopped(tmp_path, crash)
    assert status == 143 and said is not None
    assert (said["verdict"], "was ended by SIGSEGV" in said["found"]) == ("warned", True)


def test_what_is_left_of_a_stopped_command_is_told_to_end_soon(tmp_path: Path) -> None:
    """The grace of `docker stop` is ten seconds, and half of ours was waited for without a word."""
    began = time.monotonic()
    _, said, report = stopped(tmp_path, "if not os.fork(): time.sleep(600)")
    assert said is None and time.monotonic() - began < patience(12)
    (attempt,) = report["steps"][0]["attempts"]
    assert attempt["notes"][0].startswith("what its first process left had to be ended: ")


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), 9)", "raise ValueError('a probe')"])
def test_a_child_that_another_ended_or_that_ended_itself_is_everyday_work(tmp_path: Path, end: str) -> None:
    done = guarded(tmp_path, CHILD.format(end=end, after="print('all well')"))
    assert (done.status, done.said) == (0, None)
    report = json.loads((the_run(tmp_path) / "report.json").read_bytes())
    assert (report["verdict"], report["findings"]) == ("passed", [])


def test_a_child_that_was_killed_for_memory_is_told(tmp_path: Path) -> None:
    code = CHILD.format(end="held = [bytearray(b'x' * (1 << 20)) for _ in range(4096)]", after="print('goes on')")
    with memory_cgroup(300 << 20) as group:
        words = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs")]
        done = subprocess.run(
            [*words, *guard_command(sys.executable, "-c", code)], env=environment(tmp_path), cwd=tmp_path,
            capture_output=True, timeout=patience(120), check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stderr.splitlines()[-1])
    assert (said["verdict"], said["status"]) == ("warned", 0)
    assert "the kernel OOM-killed" in said["found"]


def test_a_program_that_says_that_all_is_well_is_warned_of_and_keeps_its_status(tmp_path: Path) -> None:
    code = f"import sys; {prints(WATCHDOG)}; print('done')"
    done = guarded(tmp_path, code, "--exit-status-on-crash", "70")
    assert done.status == 0 and done.said is not None
    assert done.said["verdict"] == "warned"
    assert done.said["found"].startswith("it ended with status 0, but its log shows a failure: ")


@pytest.mark.parametrize("log", ["dev/benign-stall-that-passed", "held-out/benign-shm-slow-compile",
                                 "held-out/benign-shutdown-ima", "dev/benign-sigterm-15",
                                 "shapes/request-errors-survived"])  # fmt: skip
def test_a_server_that_got_over_its_errors_and_is_stopped_is_well(tmp_path: Path, log: str) -> None:
    status, said, report = stopped(tmp_path, prints(DATA / "logs" / f"{log}.log"))
    assert (status, said, report["verdict"]) == (143, None, "passed")


def test_a_server_that_is_stopped_while_it_makes_no_progress_is_warned_of(tmp_path: Path) -> None:
    """As a liveness probe ends it, minutes before --hang-after."""
    ready = "print('INFO:     Application startup complete.', file=sys.stderr); "
    waits = "INFO 11-26 [shm_broadcast.py:501] No available shared memory broadcast block found in 60 seconds."
    status, said, _ = stopped(tmp_path, f"{ready}print({waits!r}, file=sys.stderr)")
    assert status == 143 and said is not None
    assert said["verdict"] == "warned"
    assert said["found"].startswith("it was stopped from outside, but its log shows a failure: ")


def test_an_xid_of_a_program_that_ended_with_status_0_is_told(tmp_path: Path) -> None:
    """`dmesg` is a stand-in: it has the line that the driver of an H100 wrote, of the process that ran."""
    stand_in = tmp_path / "bin" / "dmesg"
    stand_in.parent.mkdir()
    stand_in.write_text(
        '#!/bin/sh\necho "[$(cut -d. -f1 /proc/uptime).5] NVRM: Xid (PCI:0000:00:06): 31, pid=$(cat '
        f"'{tmp_path}/pid'), name=python3, channel 0x19, intr 0. MMU Fault\"\n"
    )
    stand_in.chmod(0o755)
    where = "os.path.dirname(os.environ['CUDA_COREDUMP_FILE'])"
    code = (
        f"import os, time; open('pid', 'w').write(str(os.getpid())); open({where} + '/memory-map.1.json', 'w'); "
        "time.sleep(0.5)"
    )
    path = f"{stand_in.parent}:{os.environ['PATH']}"
    done = guarded(tmp_path, code, "--exit-status-on-crash", "70", PATH=path)
    if str(Path("/proc/self/ns/pid").readlink()) != "pid:[4026531836]":
        pytest.skip("process numbers here are not the kernel's")
    assert done.status == 0 and done.said is not None
    assert (done.said["verdict"], done.said["found"][:7]) == ("warned", "Xid 31 ")
