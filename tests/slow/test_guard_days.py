"""A day's output under `vdbg-env guard`: the same bytes come out, memory stays, the disk is bounded."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import patience
from vdbg_env.supervisor.proc import descendants

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
# A request is a line of 66 bytes: 24 hours at 94 a second; VDBG_TEST_GIB=2 is 376 a second.
DAY = int(float(os.environ.get("VDBG_TEST_GIB", "0.5")) * (1 << 30))
LIMIT = 4 << 20
PUMP = """\
import sys
block = b"".join(b'INFO:     10.0.0.1:%05d - "POST /v1/completions HTTP/1.1" 200 OK\\n' % n for n in range(20000))
for _ in range(int(sys.argv[1]) // len(block)):
    sys.stdout.buffer.write(block)
"""


def resident(pid: int) -> int:
    """Return the resident memory of a process in bytes, 0 when it is gone."""
    try:
        return int((Path("/proc") / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (OSError, IndexError):
        return 0


def test_a_day_of_output(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "vdbg_env", "guard", "--log-limit", "4m", "--", sys.executable, "-c", PUMP, str(DAY)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "builder"), "VDBG_ENV_RUNS": str(tmp_path / "runs")}
    seen, count, early, most, disk = hashlib.sha256(), 0, 0, 0, 0
    with subprocess.Popen(argv, env=env, cwd=tmp_path, stdout=subprocess.PIPE) as guard:
        assert guard.stdout
        while block := os.read(guard.stdout.fileno(), 1 << 20):
            before, count = count, count + len(block)
            seen.update(block)
            if before >> 25 == count >> 25:
                continue  # look every 32 MiB
            supervisor = next(one.pid for one in descendants(guard.pid) if one.parent == guard.pid)
            memory = resident(guard.pid) + resident(supervisor)
            early, most = early or memory, max(most, memory)
            disk = max(disk, sum(file.stat().st_size for file in tmp_path.rglob("std*")))
        assert guard.wait(timeout=patience(120)) == 0
    block = b"".join(b'INFO:     10.0.0.1:%05d - "POST /v1/completions HTTP/1.1" 200 OK\n' % n for n in range(20000))
    wanted = hashlib.sha256()
    for _ in range(DAY // len(block)):
        wanted.update(block)
    assert seen.digest() == wanted.digest()
    assert most - early < 8 << 20, (early, most)
    assert disk <= LIMIT * 3 // 2, disk
