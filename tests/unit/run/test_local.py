"""Real processes under the real supervisor: what they print is kept, what they do is seen, nothing of them stays."""

import dataclasses
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import patience
from tests.support.steps import ENV, place, python, runner, seen, survivors
from vdbg_env.common.errors import HostNotAble
from vdbg_env.evidence.finding import EndedBy
from vdbg_env.runbook.model import ArtifactRule, KillPolicy, Matcher, OutputPolicy, Watch
from vdbg_env.runbook.state import Invocation
from vdbg_env.supervisor.job import HangCommand

NASTY = Path(__file__).parents[2] / "workloads" / "nasty.py"


def stdout(tmp_path: Path) -> bytes:
    return (tmp_path / "run/steps/step/1/localhost-0/stdout").read_bytes()


def test_a_program_that_ends_well(tmp_path: Path) -> None:
    found = seen(tmp_path, python("import sys; print('out'); print('err', file=sys.stderr)"))
    assert (found.ended.by, found.ended.code, found.ended.signal, found.output_bytes) == (EndedBy.EXIT, 0, None, 8)
    assert found.ended.clean
    assert stdout(tmp_path) == b"out\n"
    assert (tmp_path / "run" / found.directory / "stderr").read_bytes() == b"err\n"


def test_an_exit_status_and_a_signal_are_told_apart(tmp_path: Path) -> None:
    assert seen(tmp_path / "a", python("raise SystemExit(134)")).ended.code == 134
    ended = seen(tmp_path / "b", python("import os; os.abort()")).ended
    assert (ended.by, ended.code, ended.signal) == (EndedBy.SIGNAL, None, signal.SIGABRT)


@pytest.mark.parametrize(
    ("argv", "why"),
    [(("no-such-program-xyz",), "No such file"), (("/",), "Permission denied"), (("a\0b",), "null character")],
)
def test_a_program_that_cannot_be_started_is_an_observation(tmp_path: Path, argv: tuple[str, ...], why: str) -> None:
    found = seen(tmp_path, Invocation(step="step", attempt=1, argv=argv))
    assert found.ended.by is EndedBy.NOT_STARTED
    assert why in str(found.ended.message)


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(HostNotAble, match="supervisor of a step could not be started"):
        runner(tmp_path).start(python("pass"), tmp_path / "missing")


def test_binary_output_is_kept_exact(tmp_path: Path) -> None:
    code = "import random, os; [os.write(1, random.Random(i).randbytes(10007)) for i in range(40)]"
    seen(tmp_path, python(code))
    import random

    wanted = b"".join(random.Random(i).randbytes(10007) for i in range(40))
    assert hashlib.sha256(stdout(tmp_path)).digest() == hashlib.sha256(wanted).digest()


def test_matches_come_with_line_offset_and_groups(tmp_path: Path) -> None:
    code = r"print('a\nRank 0: CUDA error: an illegal memory access\nb\nRank 1: CUDA error: boom', flush=True)"
    matchers = (
        Matcher(name="ima", pattern="illegal memory access"),
        Matcher(name="rank", pattern=r"Rank (?P<rank>\d+): (?i:cuda) error", take="all"),
        Matcher(name="last", pattern=r"Rank (?P<rank>\d)", take="last"),
        Matcher(name="none", pattern="never"),
    )
    matched = seen(tmp_path, python(code, matchers=matchers)).matched
    assert set(matched) == {"ima", "rank", "last"}
    assert (matched["ima"][0].line, matched["ima"][0].offset, matched["ima"][0].stream) == (2, 2, "stdout")
    assert [m.groups["rank"] for m in matched["rank"]] == ["0", "1"]
    assert matched["last"][0].groups == {"rank": "1"}


def test_a_match_may_end_the_step_once_what_follows_it_was_printed(tmp_path: Path) -> None:
    code = (
        "import time\nprint('start')\nprint('fatal', flush=True)\n"
        "for n in range(6): time.sleep(0.3); print('frame', n, flush=True)\ntime.sleep(60)"
    )
    found = seen(tmp_path, python(code, matchers=(Matcher(name="f", pattern="^fatal$", stop=True),)))
    assert found.ended.by is EndedBy.MATCH
    assert stdout(tmp_path).decode().splitlines() == ["start", "fatal", *(f"frame {n}" for n in range(6))]


def test_a_time_limit_ends_the_whole_tree_within_grace_and_two_seconds(tmp_path: Path) -> None:
    limit_s = patience(0.5)  # it ignores SIGTERM only once it has started
    began = time.monotonic()
    found = seen(tmp_path, nasty("main", timeout_s=limit_s))
    assert found.ended.by is EndedBy.TIMEOUT
    assert found.ended.signal == signal.SIGKILL
    assert time.monotonic() - began < limit_s + 0.4 + patience(2)


def test_a_process_that_is_killed_leaves_no_semaphore(tmp_path: Path) -> None:
    code = (
        "import multiprocessing, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "made = multiprocessing.get_context('spawn').Semaphore()\n"
        "print(made._semlock.name, flush=True)\ntime.sleep(600)"
    )
    matchers = (Matcher(name="made", pattern="^/mp-", stop=True),)
    found = seen(tmp_path, python(code, matchers=matchers, kill=KillPolicy(grace_s=0.4)))
    assert found.ended.signal == signal.SIGKILL
    name = stdout(tmp_path).decode().strip().lstrip("/")
    assert not Path(f"/dev/shm/sem.{name}").exists(), "Python's resource tracker had no time to remove it"


def test_what_the_first_process_leaves_behind_is_ended_too(tmp_path: Path) -> None:
    found = seen(tmp_path, nasty())
    assert (found.ended.by, found.ended.code) == (EndedBy.EXIT, 0)
    assert [note for note in found.notes if "its first process left had to be ended: " in note], "why it took so long"


def nasty(*arguments: str, **fields: Any) -> Invocation:
    return python("", **fields).__class__(
        step="step", attempt=1, argv=(sys.executable, str(NASTY), *arguments), kill=KillPolicy(grace_s=0.4), **fields
    )


def test_no_survivor_of_the_nastiest_child_in_twenty_runs(tmp_path: Path) -> None:
    steps = []
    for number in range(20):
        (home := tmp_path / str(number)).mkdir()
        invocation = nasty(*(["main"] if number % 2 else []), timeout_s=0.15)
        steps.append(runner(home).start(python_grace(invocation, 0.05), place(home)))
        if len(steps) == 5:
            assert all(step.wait(20) for step in steps)
            steps.clear()
    assert [s for n in range(20) for s in survivors(tmp_path / str(n))] == []


def python_grace(invocation: Invocation, grace_s: float) -> Invocation:
    return dataclasses.replace(invocation, kill=KillPolicy(grace_s=grace_s))


def test_a_cancelled_step_ends_politely_and_a_second_asking_is_firm(tmp_path: Path) -> None:
    code = (
        "import signal,time,sys\nsignal.signal(15, lambda *_: (print('bye'), sys.exit(7)))\n"
        "print('up',flush=True)\ntime.sleep(60)"
    )
    step = runner(tmp_path).start(python(code), place(tmp_path))
    until_printed(tmp_path, b"up")
    step.cancel()
    found = step.wait(10)
    assert found is not None
    assert (found.ended.by, found.ended.code) == (EndedBy.CANCEL, 7)
    assert stdout(tmp_path) == b"up\nbye\n"

    home = tmp_path / "firm"
    step = runner(home).start(nasty("main", timeout_s=60), place(home))
    until_printed(home, b"ready")
    began = time.monotonic()
    step.cancel(firmly=True)
    assert step.wait(10) is not None
    assert time.monotonic() - began < patience(2)


def until_printed(tmp_path: Path, text: bytes) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        path = tmp_path / "run/steps/step/1/localhost-0/stdout"
        if path.exists() and text in path.read_bytes():
            return
        time.sleep(0.02)
    raise AssertionError(f"{text!r} was not printed")


def test_silence_is_a_hang_and_is_looked_at_before_the_end(tmp_path: Path) -> None:
    look = HangCommand(name="py-spy", argv=("sh", "-c", "echo looked at {pid}; cat /proc/{pid}/comm"))
    began = time.monotonic()
    found = seen(
        tmp_path,
        python(
            "import time; print('busy', flush=True); time.sleep(60)",
            watch=Watch(output_idle_s=0.5, on_hang=("stacks", "py-spy")),
        ),
        hang_tools={"py-spy": look},
    )
    assert found.ended.by is EndedBy.WATCH
    assert found.ended.message == "no output for 0.5 s"
    assert time.monotonic() - began < 0.5 + patience(5)
    told = (tmp_path / "run" / found.directory / "hang.txt").read_text()
    assert "looked at" in told
    assert "waits in" in told
    assert any(note.startswith("on hang: py-spy") for note in found.notes)


def test_idle_and_pinned_gpus_are_hangs(tmp_path: Path) -> None:
    chatty = "import time\nwhile True: print('.', flush=True); time.sleep(.1)"
    silent = "import time; time.sleep(60)"
    for name, load, code, watch, why in (
        ("idle", "0", chatty, Watch(gpu_idle_s=0.6), "every GPU idle for 0.6 s"),
        ("pinned", "100", silent, Watch(gpu_pinned_s=0.6), "a GPU at 100 % and no output for 0.6 s"),
    ):
        probe = ("sh", "-c", f"while :; do echo '0, {load}'; echo '1, {load}'; sleep 0.1; done")
        found = seen(tmp_path / name, python(code, watch=watch), gpu_probe=probe)
        assert (found.ended.by, found.ended.message) == (EndedBy.WATCH, why)


def test_a_busy_gpu_is_no_hang(tmp_path: Path) -> None:
    probe = ("sh", "-c", "while :; do echo '0, 0'; echo '1, 37'; sleep 0.05; done")
    code = "import time; [(print(i, flush=True), time.sleep(.1)) for i in range(12)]"
    assert seen(tmp_path, python(code, watch=Watch(gpu_idle_s=0.6, gpu_pinned_s=0.6)), gpu_probe=probe).ended.clean


def test_a_dump_that_grows_is_waited_for(tmp_path: Path) -> None:
    code = (
        "import os,time\nf=open(os.environ['D']+'/cuda.core','wb')\nprint('dumping',flush=True)\n"
        "for i in range(8): f.write(b'x'*1000); f.flush(); time.sleep(.25)\nf.write(b'end'); f.flush(); time.sleep(60)"
    )
    directory = str(tmp_path / "run/steps/step/1/localhost-0")
    artifacts = (
        ArtifactRule(name="core", glob="cuda.*", required=True),
        ArtifactRule(name="none", glob="x*", required=True),
    )
    found = seen(tmp_path, python(code, env={"D": directory}, timeout_s=0.5, artifacts=artifacts))
    assert found.ended.by is EndedBy.TIMEOUT
    assert found.artifacts["core"][0].size == 8003
    assert found.artifacts["core"][0].path == "steps/step/1/localhost-0/cuda.core"
    assert "artifact none: nothing matches x*" in found.notes


def test_output_beyond_the_limit_keeps_head_and_tail(tmp_path: Path) -> None:
    code = "for i in range(20000): print(f'{i:09d}')"
    found = seen(tmp_path, python(code, output=OutputPolicy(limit=40_000)))
    lines = stdout(tmp_path).splitlines()
    assert (lines[0], lines[-1]) == (b"000000000", b"000019999")
    assert len(stdout(tmp_path)) <= 40_100
    assert any("bytes not recorded: the output limit" in note for note in found.notes)
    assert not list((tmp_path / "run" / found.directory).glob("*.tail*"))


@pytest.mark.parametrize(("keep", "first", "last"), [("head", b"0", b"3"), ("tail", b"7", b"9")])
def test_only_head_or_only_tail(tmp_path: Path, keep: Any, first: bytes, last: bytes) -> None:
    code = "import os; [os.write(1, str(i).encode()*1000 + b'\\n') for i in range(10)]"
    seen(tmp_path, python(code, output=OutputPolicy(limit=4004, keep=keep)))
    kept = stdout(tmp_path).replace(b"\n", b"").translate(None, b"[.] abcdefghijklmnopqrstuvwxyz")
    assert last in stdout(tmp_path)
    assert first in kept


def test_the_workers_environment_is_compared_with_what_the_step_asked_for(tmp_path: Path) -> None:
    drops = (
        "import os,subprocess,sys,time\nenv=dict(os.environ); env.pop('CUDA_LAUNCH_BLOCKING'); env['GONE']='1'\n"
        "subprocess.run([sys.executable,'-c','import time; time.sleep(.6)'],env=env)"
    )
    asked: Mapping[str, str | None] = {"CUDA_LAUNCH_BLOCKING": "1", "GONE": None}
    found = seen(tmp_path, python(drops, env=asked), env={**ENV, "GONE": "old"})
    assert [w.seen for w in found.workers] == [
        {"CUDA_LAUNCH_BLOCKING": "1", "GONE": None},
        {"CUDA_LAUNCH_BLOCKING": None, "GONE": "1"},
    ]


def test_secrets_of_the_environment_never_reach_the_disk(tmp_path: Path) -> None:
    secret = "very-private-value-81"
    code = (
        "import os,sys,time\ntime.sleep(.2)\nv=os.environ['MY_API_KEY']\nprint(v)\n"
        "os.write(2, v[:9].encode()); os.write(2, v[9:].encode())\n"
        "open(os.environ['D']+'/dump.bin','wb').write(b'\\0ELF'+v.encode()+b'\\0')"
    )
    directory = str(tmp_path / "run/steps/step/1/localhost-0")
    found = seen(tmp_path, python(code, env={"MY_API_KEY": secret, "D": directory}))
    for path in (tmp_path / "run").rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path
    assert "1 secrets masked in dump.bin" in found.notes
    assert [set(w.seen) for w in found.workers] == [{"D"}]


def test_what_the_command_line_and_addresses_hold_never_reaches_the_disk(tmp_path: Path) -> None:
    code = (
        "import os,sys\nfor v in (sys.argv[2], os.environ['DATABASE_URL'].split(':')[2].split('@')[0]):\n"
        " print('using', v)\n open(os.environ['D']+'/dump.bin','ab').write(b'\\0ELF'+v.encode()+b'\\0')"
    )
    directory = str(tmp_path / "run/steps/step/1/localhost-0")
    env = {"DATABASE_URL": "postgres://app:db-Pass-7731@db/app", "D": directory}
    given = python(code, env=env)
    seen(tmp_path, dataclasses.replace(given, argv=(*given.argv, "--api-key", "argv-Pass-1")))
    for path in (tmp_path / "run").rglob("*"):
        held = path.read_bytes() if path.is_file() else b""
        assert b"argv-Pass-1" not in held and b"db-Pass-7731" not in held, path


def test_another_engine_adopts_what_runs_and_what_has_ended(tmp_path: Path) -> None:
    invocation = python("import time; print('up', flush=True); time.sleep(.7); print('done')")
    directory = place(tmp_path)
    first = runner(tmp_path).start(invocation, directory)
    until_printed(tmp_path, b"up")
    adopted = runner(tmp_path).adopt(invocation, directory)
    assert adopted is not None
    assert adopted.wait(0.05) is None
    found = adopted.wait(10)
    assert found is not None
    assert found.ended.clean
    assert stdout(tmp_path) == b"up\ndone\n"
    again = runner(tmp_path).adopt(invocation, directory)
    assert again is not None
    assert again.wait(10) == first.wait(10) == found


def test_what_was_never_started_cannot_be_adopted(tmp_path: Path) -> None:
    assert runner(tmp_path).adopt(python("pass"), place(tmp_path)) is None


def test_a_killed_supervisor_leaves_its_output_and_nothing_else(tmp_path: Path) -> None:
    invocation = nasty("main", timeout_s=60)
    directory = place(tmp_path)
    step = runner(tmp_path).start(invocation, directory)
    until_printed(tmp_path, b"ready")
    pid = json.loads((directory / "supervisor.json").read_text().splitlines()[0])["pid"]
    os.kill(pid, signal.SIGKILL)
    found = step.wait(10)
    assert found is not None
    assert found.ended.by is EndedBy.ENGINE_LOST
    assert stdout(tmp_path) == b"ready\n"
    assert survivors(tmp_path) == []


def test_the_floor_of_free_space_ends_the_step(tmp_path: Path) -> None:
    found = seen(tmp_path, python("import time; time.sleep(60)"), disk_floor=1 << 60)
    assert found.ended.by is EndedBy.DISK
    assert "the floor is" in str(found.ended.message)


def test_a_folder_that_becomes_a_link_while_the_step_runs_is_not_followed(tmp_path: Path) -> None:
    directory, elsewhere = place(tmp_path), tmp_path / "elsewhere"
    elsewhere.mkdir()
    code = "import sys,time\nprint('before',flush=True)\nsys.stdin.read()\ntime.sleep(1)\nprint('after',flush=True)"
    step = runner(tmp_path).start(python(code), directory)
    moved = directory.with_name("moved")
    directory.rename(moved)
    directory.symlink_to(elsewhere)
    until = time.monotonic() + 120
    while not (moved / "ended.json").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert (moved / "stdout").read_bytes() == b"before\nafter\n"
    assert json.loads((moved / "ended.json").read_text())["by"] == "exit"
    found = step.wait(20)
    assert found is not None and found.ended.by is EndedBy.ENGINE_LOST
    assert list(elsewhere.iterdir()) == []


def test_what_a_link_leads_to_is_no_artifact(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "key.txt").write_text("not the step's")
    code = "import os\nos.symlink(os.environ['AIM'], os.environ['D'] + '/sub')\nopen(os.environ['D'] + '/own.txt', 'w')"
    invocation = python(
        code,
        env={"AIM": str(tmp_path / "private"), "D": str(tmp_path / "run/steps/step/1/localhost-0")},
        artifacts=(ArtifactRule(name="texts", glob="*.txt"), ArtifactRule(name="below", glob="sub/*.txt")),
    )
    found = seen(tmp_path, invocation)
    assert [a.path.rpartition("/")[2] for a in found.artifacts["texts"]] == ["own.txt"]
    assert "below" not in found.artifacts
