"""Workloads at their worst: a thousand that will not die, gigabytes of output, full disks, a thousand secrets."""

import hashlib
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slow.failing_disk import failing_disk
from tests.slow.small_disk import mounted
from tests.support import small_run
from tests.support.command_line import vdbg_env
from tests.support.killing import left_running, run
from tests.support.memory_cgroup import memory_cgroup
from tests.support.patience import patience
from vdbg_env.common.errors import HostNotAble
from vdbg_env.evidence.finding import EndedBy, Observation
from vdbg_env.evidence.system import memory_kill_findings
from vdbg_env.record.event_log import Event, read_events
from vdbg_env.record.progress import Progress, from_document, to_document
from vdbg_env.record.run_directory import RunDirectory
from vdbg_env.run.job import StepSettings
from vdbg_env.run.local import LocalProcesses
from vdbg_env.runbook.model import ArtifactRule, KillPolicy, Matcher, OutputPolicy
from vdbg_env.runbook.state import Invocation

pytestmark = pytest.mark.slow

NASTY = Path(__file__).parents[1] / "workloads" / "nasty.py"
ENV = {"PATH": os.environ["PATH"]}
GIB = 1 << 30


def runner(home: Path, **settings: object) -> LocalProcesses:
    return LocalProcesses(StepSettings(**{"env": ENV, "cwd": home, "mark": str(home), **settings}))  # type: ignore[arg-type]


def place(home: Path) -> Path:
    directory = home / "run" / "steps" / "step" / "1" / "localhost-0"
    directory.mkdir(parents=True)
    return directory


def test_no_survivor_in_a_thousand_runs_of_the_nastiest_child(tmp_path: Path) -> None:
    """Two seconds over limit and grace are a promise of an idle machine; each batch measures how idle it is."""
    grace, limit = 0.05, 0.15
    for batch in range(250):
        started = []
        for number in range(4):
            home = tmp_path / f"{batch}-{number}"
            arguments = ["main"] if number % 2 else []
            invocation = Invocation(
                step="step",
                attempt=1,
                argv=(sys.executable, str(NASTY), *arguments),
                timeout_s=limit,
                kill=KillPolicy(grace_s=grace),
            )
            started.append(runner(home).start(invocation, place(home)))
        allowed = limit + grace + patience(2.0)
        for step in started:
            seen = step.wait(20 * allowed)
            assert seen is not None
            assert not [n for n in seen.notes if "could not be killed" in n]
            assert seen.duration_s < max(allowed, limit + grace + patience(2.0))
    assert left_running(tmp_path) == []


def peak_kib(pid: int) -> int:
    """Return the highest resident size of a process so far, in KiB, 0 when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def test_gigabytes_of_output_take_no_memory_and_keep_head_tail_and_matches(tmp_path: Path) -> None:
    """Ten gigabytes when VDBG_TEST_GIB=10; the head, the tail and the one line in the middle that matters are there."""
    size = int(os.environ.get("VDBG_TEST_GIB", "1"))
    code = (
        "import sys,os\n"
        "line=b'(EngineCore pid=4711) INFO 11-21 07:35:12 [loggers.py:248] Avg prompt throughput: 12.5 tok/s\\n'\n"
        f"block=line*(1<<20//len(line)+1)\nblock=line*((1<<20)//len(line))\nn=({size}<<30)//len(block)\n"
        "os.write(1,b'FIRST\\n')\n"
        "for i in range(n):\n"
        "    if i==n//2: os.write(1,b'CUDA error: an illegal memory access was encountered\\n')\n"
        "    v=memoryview(block)\n"
        "    while v: v=v[os.write(1,v):]\n"
        "os.write(1,b'LAST\\n')\n"
    )
    invocation = Invocation(
        step="step",
        attempt=1,
        argv=(sys.executable, "-c", code),
        output=OutputPolicy(limit=64 << 20),
        matchers=(Matcher(name="ima", pattern="illegal memory access was encountered|cudaErrorIllegalAddress"),),
    )
    directory = place(tmp_path)
    before = peak_kib(os.getpid())
    step = runner(tmp_path).start(invocation, directory)
    pid = json.loads((directory / "supervisor.json").read_text().splitlines()[0])["pid"]
    first, peak, seen = 0, 0, None
    while seen is None:
        seen = step.wait(0.5)
        now = peak_kib(pid)
        first, peak = first or now, max(peak, now)
    assert seen.ended.clean
    assert seen.output_bytes > size * GIB * 0.99
    assert peak - first + peak_kib(os.getpid()) - before < 64 << 10
    assert seen.matched["ima"][0].line > 1000
    kept = (directory / "stdout").read_bytes()
    assert kept.startswith(b"FIRST\n")
    assert kept.endswith(b"LAST\n")
    assert len(kept) < (64 << 20) + 200


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of eight megabytes."""
    with mounted(tmp_path / "disk", "size=8m") as disk:
        yield disk


FLOOD = "import os,time\nos.write(1,b'begun\\n')\nfor i in range(40): os.write(1,b'x'*(1<<20)+b'\\n')\ntime.sleep(60)"


def test_a_disk_that_fills_ends_the_step_and_leaves_a_readable_record(small_disk: Path) -> None:
    invocation = Invocation(
        step="step", attempt=1, argv=(sys.executable, "-c", FLOOD), timeout_s=30, kill=KillPolicy(grace_s=0.5)
    )
    directory = place(small_disk)
    seen = runner(small_disk).start(invocation, directory).wait(20)
    assert seen is not None
    assert seen.ended.by is EndedBy.DISK
    assert seen.ended.message == "the output cannot be written: No space left on device"
    assert (directory / "stdout").read_bytes().startswith(b"begun\n")
    assert json.loads((directory / "ended.json").read_text())["by"] == "disk"
    assert left_running(small_disk) == []


def fill(disk: Path) -> Path:
    """Leave not a byte free, and return the file that takes them all."""
    ballast = disk / "ballast"
    space = os.statvfs(disk)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, space.f_bavail * space.f_frsize)
    return ballast


def test_a_disk_that_fills_during_a_run_costs_no_event_and_the_run_goes_on_when_there_is_room(small_disk: Path) -> None:
    path = small_disk / "run"

    def fill_up(event: Event, _walk: Progress) -> None:
        if event.kind == "attempt_ended":
            fill(small_disk)

    with pytest.raises(HostNotAble, match="No space left"):
        run(path, small_run.execution(path, listener=fill_up))
    assert [e.kind for e in read_events(path / "events.jsonl")][-2:] == ["attempt_ended", "attempt_started"]
    (small_disk / "ballast").unlink()
    end = run(path)
    assert [w.step.id for w in end.progress.visits] == ["check", "baseline", "ask", "blocking", "again"]


TINY = """\
apiVersion: vdbg-env/v1
kind: Runbook
metadata: {name: tiny, title: Tiny}
spec:
  inputs: {argv: {type: array, required: true, description: The workload.}}
  commands: {workload: {argv: "${{ inputs.argv }}", timeout: 60s}}
  steps:
    - {id: baseline, name: Does it fail?, run: workload, outcomes: [{unresolved: {next: end}}]}
"""


def test_a_run_that_asks_for_room_is_refused_on_a_disk_that_has_none(small_disk: Path) -> None:
    path = str(small_disk / "run")
    ran = vdbg_env("runbook", "illegal-memory-access", "--batch", "--run-dir", path, "--", "sleep", "30")
    assert ran.status == 1
    assert "8MiB are free for the record, 1GiB are needed" in ran.stderr


def test_no_run_begins_on_a_disk_below_its_floor(small_disk: Path) -> None:
    path, book = small_disk / "run", small_disk / "tiny.yaml"
    book.write_text(TINY)
    ran = vdbg_env("runbook", "-f", str(book), "tiny", "--batch", "--run-dir", str(path), "--", "sleep", "30")
    assert ran.status == 1
    assert f"7 MiB are free on the disk of {path}, and no step starts below 1024 MiB" in ran.stderr
    assert "--disk-floor 200m" in ran.stderr
    assert not path.exists()


def test_a_disk_that_is_still_full_costs_no_attempt_and_the_run_goes_on_when_there_is_room(small_disk: Path) -> None:
    """Seen: each resume on a full disk started the step again, and the second one used up the only repeat."""
    path, book = small_disk / "run", small_disk / "tiny.yaml"
    book.write_text(TINY.replace("unresolved: {next: end}", "not_reproduced: {next: end}"))
    takes = "import os; os.posix_fallocate(os.open('ballast', os.O_CREAT | os.O_RDWR), 0, 5 << 20); import time; "
    waits = "time.sleep(0 if os.path.exists('well') else 60)"
    command = ("--", sys.executable, "-c", f"import os\nos.chdir({str(small_disk)!r})\n{takes}{waits}")
    ran = vdbg_env(
        "runbook", "-f", str(book), "tiny", "--batch", "--disk-floor", "4m", "--run-dir", str(path), *command
    )
    assert ran.status == 125
    assert "the disk is full, or fails: 2 MiB left on the disk, the floor is 4 MiB" in ran.stdout
    assert f"--resume {path}" in ran.stderr
    assert json.loads((path / "report.json").read_text())["verdict"] == "inconclusive"
    assert left_running(path) == []
    for _ in range(2):
        again = vdbg_env("runbook", "--resume", str(path), "--batch")
        assert again.status == 125, again.stderr
        assert "no step starts below 4 MiB" in " ".join(again.stdout.split())
        assert len(list((path / "steps" / "baseline").iterdir())) == 1
    (small_disk / "well").touch()
    ended = vdbg_env("runbook", "--resume", str(path), "--batch", "--disk-floor", "1m")
    assert ended.status == 0, ended.stdout
    assert len(list((path / "steps" / "baseline").iterdir())) == 2


def test_a_run_cannot_begin_on_a_full_disk_and_says_so(small_disk: Path) -> None:
    begun = small_run.execution(small_disk / "run")
    fill(small_disk)
    with pytest.raises(HostNotAble, match="No space left"):
        run(small_disk / "run", begun)


def test_a_read_only_folder_is_a_clear_error(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(HostNotAble, match=r"no run can be kept in .*Read-only file system"):
        RunDirectory(small_disk / "run").create()


def test_a_disk_that_dies_ends_the_step_and_leaves_nobody(tmp_path: Path) -> None:
    code = "import os,time\nwhile True: os.write(1,b'x'*1000+b'\\n'); time.sleep(.01)"
    invocation = Invocation(
        step="step", attempt=1, argv=(sys.executable, "-c", code), timeout_s=30, kill=KillPolicy(grace_s=0.5)
    )
    with failing_disk(tmp_path) as disk:
        step = runner(disk.path).start(invocation, place(disk.path))
        assert step.wait(0.5) is None
        disk.fail("EIO")
        with pytest.raises(HostNotAble, match="cannot be read: Input/output error"):
            step.wait(20)
        assert left_running(disk.path) == []


@pytest.fixture
def small_memory() -> Iterator[Path]:
    with memory_cgroup(256 << 20) as group:
        yield group


def test_a_process_that_the_kernel_ends_for_lack_of_memory_is_found_out(tmp_path: Path, small_memory: Path) -> None:
    """The engine goes into the small cgroup by itself, so that all it starts is there too."""
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            (small_memory / "cgroup.procs").write_text(str(os.getpid()))
            hog = "data = bytearray(1 << 30)\nfor at in range(0, len(data), 4096): data[at] = 1"
            invocation = Invocation(step="step", attempt=1, argv=(sys.executable, "-c", hog), timeout_s=60)
            found = runner(tmp_path).start(invocation, place(tmp_path)).wait(60)
            os.write(write, json.dumps(to_document(found) if found else None).encode())
        finally:
            os._exit(0)
    os.wait()
    seen = from_document(Observation, json.loads(os.read(read, 1 << 16)))
    assert (seen.ended.by, seen.ended.signal) == (EndedBy.SIGNAL, 9)
    assert seen.memory_kills.cgroup == 1
    (finding,) = memory_kill_findings([seen])
    named = r"the kernel OOM-killed python\S* \(\d+\) of this step"  # where the kernel's log can be read
    counted = "the kernel OOM-killed a process of this step's cgroup"
    assert re.fullmatch(f"{named}|{counted}", finding.message)


def secrets(count: int) -> list[str]:
    rng = random.Random(7)
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    return ["hf_" + "".join(rng.choices(letters, k=34)) for _ in range(count)]


def test_of_a_thousand_secrets_in_argv_env_output_and_artifacts_none_is_on_disk(tmp_path: Path) -> None:
    """The workload prints them in pieces of a few bytes, each its own write, so that every border cuts one."""
    planted = secrets(1000)
    by_name = [hashlib.sha256(s.encode()).hexdigest()[:20] for s in planted[:100]]  # known by their variable alone
    code = (
        "import os,sys\n"
        "env=b'\\n'.join(v.encode() for k,v in sorted(os.environ.items()))+b'\\n'\n"
        "text=' '.join(sys.argv[1:]).encode()+b'\\n'+env\n"
        "text+=open(os.environ['EXTRA'],'rb').read()\n"
        "for i in range(0,len(text),13): os.write(1+i//13%2*0,text[i:i+13])\n"
        "os.write(2,text)\n"
        "d=os.environ['D']\nos.makedirs(d+'/sub')\n"
        "open(d+'/sub/text.log','wb').write(text)\nopen(d+'/dump.bin','wb').write(b'\\0\\1ELF'+text)\n"
    )
    directory = place(tmp_path)
    (tmp_path / "extra").write_text("\n".join(f"token {s} in a line" for s in planted[600:]))
    env = {
        **ENV,
        "EXTRA": str(tmp_path / "extra"),
        **{f"PLAIN_{n}": f"text with {s}" for n, s in enumerate(planted[300:600])},
        **{f"SERVICE_{n}_PASSWORD": s for n, s in enumerate(by_name)},
    }
    invocation = Invocation(
        step="step",
        attempt=1,
        argv=(sys.executable, "-c", code, *(f"--x={s}" for s in planted[:300])),
        env={"D": str(directory), "MORE_TOKEN": planted[0]},
        matchers=(Matcher(name="all", pattern="token", take="all"),),
        artifacts=(ArtifactRule(name="logs", glob="**/*.log"), ArtifactRule(name="dump", glob="dump.bin")),
    )
    seen: Observation | None = runner(tmp_path, env=env).start(invocation, directory).wait(120)
    assert seen is not None
    assert seen.ended.clean
    assert len(seen.artifacts["logs"]) == 1
    assert b"[redacted hf-token]" in (directory / "stdout").read_bytes()
    left = [
        (path.name, secret)
        for path in (tmp_path / "run").rglob("*")
        if path.is_file()
        for data in [path.read_bytes()]
        for secret in [*planted, *by_name]
        if secret.encode() in data
    ]
    assert left == []
    assert not [s for s in [*planted, *by_name] if s in repr(seen)]


def test_a_hang_is_found_within_five_seconds_of_its_watch(tmp_path: Path) -> None:
    from vdbg_env.runbook.model import Watch

    invocation = Invocation(
        step="step",
        attempt=1,
        argv=(sys.executable, str(NASTY), "main"),
        watch=Watch(output_idle_s=3.0),
        kill=KillPolicy(grace_s=0.2),
    )
    began = time.monotonic()
    seen = runner(tmp_path).start(invocation, place(tmp_path)).wait(30)
    assert seen is not None
    assert seen.ended.by is EndedBy.WATCH
    assert time.monotonic() - began < 3.0 + patience(5.0)
