"""How often a supervisor looks at a workload that it ends."""

import json
import subprocess
import sys
from pathlib import Path

from tests.support.patience import patience
from vdbg_env.supervisor import control_files, helpers
from vdbg_env.supervisor.job import Job, to_json

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
COUNTED = """
import sys
from vdbg_env.supervisor import loop
from vdbg_env.supervisor.streams import Streams

waits, wait = [], Streams.wait
Streams.wait = lambda self, timeout_s: (waits.append(timeout_s), wait(self, timeout_s))
status = loop.main()
with open(sys.argv[1], "w") as counts:
    print(waits.count(0.0), file=counts)
sys.exit(status)
"""


def test_a_step_past_its_time_limit_is_ended_with_pauses(tmp_path: Path) -> None:
    """The limit was due all the time that the end took, up to minutes while a dump is written: a core for nothing."""
    job = Job(
        str(tmp_path), (sys.executable, "-c", DEAF), {helpers.MARK: str(tmp_path)}, "/", timeout_s=0.5, grace_s=1.0
    )
    sent = f'"{tmp_path}"\n'.encode() + to_json(job)
    counts = tmp_path / "counts"
    argv = [sys.executable, "-c", COUNTED, str(counts)]
    subprocess.run(argv, input=sent, stdout=subprocess.DEVNULL, timeout=patience(30), check=True)
    assert int(counts.read_text()) < 20, "looks without a pause before them"


def test_a_workload_that_removes_its_folder_of_dumps_is_not_ended(tmp_path: Path) -> None:
    dumps, record = tmp_path / "dumps", tmp_path / "record"
    dumps.mkdir()
    record.mkdir()
    code = f"import os, time; os.rmdir({str(dumps)!r}); time.sleep(1.6)"
    job = Job(str(record), (sys.executable, "-c", code), {helpers.MARK: str(tmp_path)}, "/", dumps=str(dumps))
    sent = f'"{record}"\n'.encode() + to_json(job)
    argv = [sys.executable, "-m", "vdbg_env.supervisor"]
    subprocess.run(argv, input=sent, stdout=subprocess.DEVNULL, timeout=patience(30), check=True)
    ended = json.loads((record / control_files.ENDED).read_bytes())
    assert (ended["by"], ended["code"]) == ("exit", 0)
