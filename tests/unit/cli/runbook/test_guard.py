"""`vdbg-env guard` around real processes: output and status are theirs, what ended them is on record."""

import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.slow.small_disk import mounted
from tests.support.command_line import vdbg_env
from tests.support.patience import patience
from tests.support.reports import SKIP
from tests.unit.cli.test_stopping import SERVES
from vdbg_env.supervisor.proc import processes

ROOT = Path(__file__).parents[4]


@dataclass(frozen=True)
class Guarded:
    """A guard that has ended; `said` is its line of JSON, None where it said nothing."""

    status: int
    stdout: bytes
    stderr: bytes
    said: dict[str, Any] | None


def environment(folder: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VDBG_", "CUDA_"))}
    return {**kept, "PYTHONPATH": str(ROOT / "builder"), "VDBG_ENV_RUNS": str(folder / "runs"), **more}


def guard_command(*words: str, flags: tuple[str, ...] = ()) -> list[str]:
    return [sys.executable, "-m", "vdbg_env", "guard", *flags, "--", *words]


def guarded(folder: Path, code: str, *flags: str, **more: str) -> Guarded:
    """Run a Python program under guard, to its end."""
    done = subprocess.run(
        guard_command(sys.executable, "-c", code, flags=flags),
        env=environment(folder, **more), cwd=folder, capture_output=True, timeout=patience(60), check=False,
    )  # fmt: skip
    *own, last = done.stderr.split(b"\n")[:-1] or [b""]
    said = json.loads(last) if last.startswith(b'{"schema": "vdbg-env/guard') else None
    return Guarded(done.returncode, done.stdout, b"\n".join(own) if said else done.stderr, said)


def ended_by_sigterm(folder: Path, code: str, *flags: str) -> tuple[int, bytes]:
    """Guard a Python program, end it by SIGTERM once it has made a file `ready`; returns status and standard error."""
    with subprocess.Popen(
        guard_command(sys.executable, "-c", code, flags=flags),
        env=environment(folder), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as guard:  # fmt: skip
        until = time.monotonic() + patience(20)
        while not (folder / "ready").exists():
            assert time.monotonic() < until
            time.sleep(0.05)
        guard.send_signal(signal.SIGTERM)
        _, stderr = guard.communicate(timeout=patience(30))
    return guard.returncode, stderr


def the_run(folder: Path) -> Path:
    (run,) = (folder / "runs").glob("*-guard-*")
    return run


def test_an_exception_is_explained_after_the_command_s_own_output(tmp_path: Path) -> None:
    code = r"import os; os.write(1, b'out\x00\xff\r\n'); raise ValueError('no such expert')"
    done = guarded(tmp_path, code)
    assert done.status == 1
    assert done.stdout == b"out\x00\xff\r\n"
    assert done.stderr.startswith(b"Traceback") and done.stderr.endswith(b"ValueError: no such expert")
    assert done.said is not None
    assert (done.said["verdict"], done.said["found"]) == ("failed", "ValueError: no such expert")
    assert done.said["ended"] == {"by": "exit", "code": 1, "signal": None}
    report = Path(done.said["report"])
    assert report.parent == the_run(tmp_path)
    assert "no such expert" in report.read_text()
    assert (report.parent / "steps/guarded/1/localhost-0/stdout").read_bytes() == done.stdout


@pytest.mark.parametrize("how", ["keys", "hang-up", "kill"])
def test_what_a_terminal_sends_reaches_the_group_and_a_sent_signal_the_first_process(tmp_path: Path, how: str) -> None:
    """The first process is a shell that heeds no signal while it waits: it ends as its child does."""
    script = tmp_path / "run.sh"
    script.write_text(
        "trap 'touch first' TERM\ntrap '' HUP\n"
        'python3 -c \'import signal, time; signal.signal(1, lambda *_: exit(7)); print("begun", flush=True); '
        "time.sleep(600)' || echo $? > child\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(sys.executable, guard_command("bash", "run.sh"), environment(tmp_path))
    try:
        said = b""
        while b"begun" not in said:
            said += os.read(terminal, 1 << 16)
        match how:
            case "keys":
                os.write(terminal, b"\x03")
            case "hang-up":
                os.close(terminal)
                terminal = -1
            case _:
                os.kill(pid, signal.SIGTERM)
                time.sleep(1)
                assert not (tmp_path / "child").exists(), "a signal to guard alone goes to the first process alone"
                os.write(terminal, b"\x03")
        until = time.monotonic() + patience(20)
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            assert time.monotonic() < until, "the child heard nothing"
            time.sleep(0.05)
            if terminal >= 0 and select.select([terminal], [], [], 0)[0]:
                with suppress(OSError):
                    os.read(terminal, 1 << 16)
        pid = 0
    finally:
        if terminal >= 0:
            os.close(terminal)
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("log", "status", "found", "fix"),
    [
        ("bad-flag", 2, "unrecognized arguments: --no-such-flag", "vdbg-env runbooks explain --no-such-flag"),
        ("port-in-use", 1, "Address already in use", "ss -ltnp"),
        ("no-config-file", 1, "No such file or directory: '/etc/nowhere.yaml'", "give a path that exists"),
        ("no-model", 1, "'/models/nowhere'", "give the model's folder"),
    ],
)
def test_what_kept_a_server_from_starting_is_said_with_what_mends_it(
    tmp_path: Path, log: str, status: int, found: str, fix: str
) -> None:
    """The log is a real vLLM's, the program that prints it a stand-in."""
    text = ROOT / "tests" / "data" / "logs" / "real-vllm" / f"{log}.log"
    done = guarded(tmp_path, f"import sys; sys.stderr.write(open({str(text)!r}).read()); sys.exit({status})")
    assert done.said is not None
    assert found in done.said["found"] and fix in done.said["next"], done.said
    report = (the_run(tmp_path) / "report.md").read_text()
    assert "no word of the reason" not in report
    assert fix in " ".join(report.split())


@pytest.mark.parametrize(
    ("mode", "status", "step"),
    [(None, 127, "check the path"), (0o644, 126, "chmod +x"), (0o755, 126, "uname -m")],
    ids=["absent", "no-program", "of another machine"],
)
def test_a_command_that_cannot_be_started_has_a_next_step(
    tmp_path: Path, mode: int | None, status: int, step: str
) -> None:
    program = tmp_path / "passwd"  # what the system says of it is no password
    if mode:
        program.write_bytes(b"\x7fELF\2\1\1\0")
        program.chmod(mode)
    done = subprocess.run(
        guard_command(str(program)), env=environment(tmp_path), cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == status
    assert step in json.loads(done.stderr)["next"]


@pytest.mark.parametrize("folder", ["", "bin"], ids=["by its path", "from PATH"])
def test_a_script_without_an_interpreter_line_runs_as_below_env_and_nohup(tmp_path: Path, folder: str) -> None:
    script = tmp_path / folder / "start-job"
    script.parent.mkdir(exist_ok=True)
    script.write_text('echo "$0 has $1"; exit 7\n')
    script.chmod(0o755)
    more = environment(tmp_path)
    done = subprocess.run(
        guard_command(script.name if folder else "./start-job", "a word"), cwd=tmp_path, capture_output=True, text=True,
        env={**more, "PATH": f"{script.parent}:{more['PATH']}"}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (7, f"{script if folder else './start-job'} has a word\n"), done.stderr


@pytest.mark.parametrize("after", ["", "gzip -q {log}.1", "touch {log}"], ids=["renamed", "compressed", "made-anew"])
def test_a_log_that_others_rotate_is_read_to_its_end(tmp_path: Path, after: str) -> None:
    code = (
        "import glob, os, sys, time\n"
        "print('first', file=sys.stderr, flush=True)\n"
        "(log,) = glob.glob('runs/*/steps/guarded/1/*/stderr')\n"
        "while not os.stat(log).st_size: time.sleep(0.01)\n"
        f"os.rename(log, log + '.1'); os.system({after!r}.format(log=log))\n"
        "raise ValueError('no such expert')"
    )
    done = guarded(tmp_path, code)
    assert done.said is not None
    assert done.said["found"] == "ValueError: no such expert"
    (log,) = tmp_path.glob("runs/*/steps/guarded/1/*/stderr")
    assert log.read_bytes().startswith(b"first\nTraceback")


@pytest.mark.parametrize(
    ("flags", "more", "kept_out"),
    [
        ((), {}, "skip_nonrelocated_elf_images,skip_global_memory,skip_constbank_memory"),
        (("--core", "light"), {}, SKIP),
        (("--core", "full"), {}, "skip_nonrelocated_elf_images"),
        (("--full-core",), {}, "skip_nonrelocated_elf_images"),
        ((), {"VDBG_GUARD_FULL_CORE": "1"}, "skip_nonrelocated_elf_images"),
        ((), {"VDBG_GUARD_CORE": "light"}, SKIP),
        (("--core", "full"), {"CUDA_COREDUMP_GENERATION_FLAGS": "skip_local_memory"}, "skip_local_memory"),
    ],
    ids=["default", "light", "full", "full-core", "VDBG_GUARD_FULL_CORE", "VDBG_GUARD_CORE", "the user's own"],
)
def test_a_core_is_armed_as_the_command_line_or_the_environment_says(
    tmp_path: Path, flags: tuple[str, ...], more: dict[str, str], kept_out: str
) -> None:
    code = "import os; print(os.environ['CUDA_COREDUMP_GENERATION_FLAGS'])"
    done = subprocess.run(
        guard_command(sys.executable, "-c", code, flags=flags),
        env={**environment(tmp_path), **more}, cwd=tmp_path, capture_output=True, timeout=patience(60), check=False,
    )  # fmt: skip
    assert done.stdout.decode().strip() == kept_out


def test_what_it_would_print_of_the_environment_is_what_the_command_gets(tmp_path: Path) -> None:
    def armed(*words: str, flags: tuple[str, ...] = ()) -> dict[str, str]:
        done = subprocess.run(
            guard_command(*words, flags=flags), env=environment(tmp_path), cwd=tmp_path, capture_output=True,
            timeout=patience(60), check=True, text=True,
        )  # fmt: skip
        lines = (line.split("  # ")[0] for line in done.stdout.splitlines() if not line.startswith("#"))
        return dict(line.split("=", 1) for line in lines)

    code = "import os; print(*(f'{name}={value}' for name, value in os.environ.items()), sep='\\n')"
    command = (sys.executable, "-c", code)
    said = armed(*command, flags=("--print-environment",))
    assert not (tmp_path / "runs").exists()
    got = armed(*command)
    kept = list((tmp_path / "runs").iterdir())
    armed(*command, flags=("--keep", "1", "--print-environment"))
    assert list((tmp_path / "runs").iterdir()) == kept
    before = environment(tmp_path)
    added = {name for name in got if got[name] != before.get(name)} - {"LC_CTYPE"}  # which Python sets itself
    assert added == set(said)
    assert {n: v for n, v in said.items() if "FOLDER" not in v and n != "VDBG_ENV_STEP"}.items() <= got.items()


AT_THE_START = r"""Fatal Python error: init_import_site: Failed to import the site module
Python runtime state: initialized
Traceback (most recent call last):
  File "<frozen site>", line 626, in main
  File "/x/sitecustomize.py", line 12, in <module>
    import re
KeyboardInterrupt
"""
RAISES = """
import asyncio, os, signal, sys, time, traceback
def handler(*_):
    {handler}
async def wait():
    asyncio.get_running_loop().add_signal_handler(15, asyncio.current_task().cancel)
    open("ready", "w").close()
    await asyncio.sleep(600)
signal.signal(15, handler)
{before}
open("ready", "w").close()
try:
    time.sleep(600)
except BaseException:
    traceback.print_exc()
    os._exit(1)
"""


@pytest.mark.parametrize(
    ("handler", "before", "is_failure"),
    [
        ("raise KeyboardInterrupt('terminated')", "", False),
        ("raise SystemExit('bye')", "", False),
        ("pass", "asyncio.run(wait())", False),
        (f"os.write(2, {AT_THE_START.encode()!r}); os._exit(1)", "", False),
        ("raise RuntimeError('cannot be ended')", "", True),
    ],
    ids=["interrupt", "exit", "cancelled", "python-s-start", "failure"],
)
def test_what_python_raises_for_a_stop_from_outside_is_no_failure(
    tmp_path: Path, handler: str, before: str, is_failure: bool
) -> None:
    code = RAISES.format(handler=handler, before=before)
    status, stderr = ended_by_sigterm(tmp_path, code, "--hook", "touch hooked")
    assert status == 1, "the command's own status"
    assert (b"vdbg-env/guard" in stderr) is (tmp_path / "hooked").exists() is is_failure
    report = json.loads((the_run(tmp_path) / "report.json").read_text())
    assert (report["verdict"], report["fingerprint"] is None) == (("failed", False) if is_failure else ("passed", True))
    page = (the_run(tmp_path) / "report.md").read_text()
    assert "stopped (SIGTERM was sent to it from outside)" in page and "after its requests" not in page


@pytest.mark.parametrize(
    ("command", "status", "is_failure"),
    [
        (("yes",), 141, False),
        ((sys.executable, "-c", "while True: print('x' * 99)"), 1, False),
        ((sys.executable, "-c", "import os, time\ntry: os.write(1, b'x')\nfinally: time.sleep(1); [][1]"), 1, True),
    ],
    ids=["signal", "exception", "failure"],
)
def test_a_command_whose_reader_has_gone_did_not_crash(
    tmp_path: Path, command: tuple[str, ...], status: int, is_failure: bool
) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        guard_command(*command), env=environment(tmp_path), cwd=tmp_path, stdout=write, stderr=subprocess.PIPE,
        timeout=patience(30), check=False,
    )  # fmt: skip
    os.close(write)
    assert done.returncode == status
    assert (b"vdbg-env/guard" in done.stderr) is is_failure


def test_the_status_of_a_signal_is_the_one_a_shell_gives(tmp_path: Path) -> None:
    done = guarded(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert done.status == 139
    assert done.said is not None
    assert (done.said["status"], done.said["ended"]["signal"]) == (139, signal.SIGSEGV)


@pytest.mark.parametrize(
    ("code", "flags", "status"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", (), 139),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", ("--exit-status-on-crash", "70"), 70),
        ("raise SystemExit(3)", ("--exit-status-on-crash", "70"), 70),
        ("print('all well')", ("--exit-status-on-crash", "70"), 0),
    ],
    ids=["segfault", "segfault-70", "exit-70", "well"],
)
def test_a_crash_has_the_status_that_was_asked_for(
    tmp_path: Path, code: str, flags: tuple[str, ...], status: int
) -> None:
    done = guarded(tmp_path, code, *flags)
    assert done.status == status
    assert (done.said or {"status": 0})["status"] == status


@pytest.mark.parametrize("to", [subprocess.PIPE, subprocess.STDOUT], ids=["apart", "together"])
def test_the_line_is_never_glued_to_an_unfinished_one(tmp_path: Path, to: int) -> None:
    name = "stderr" if to == subprocess.PIPE else "stdout"
    code = f"import sys; sys.{name}.write('one\\nhalf a line'); sys.exit(3)"
    done = subprocess.run(
        guard_command(sys.executable, "-c", code), env=environment(tmp_path), cwd=tmp_path, stdout=subprocess.PIPE,
        stderr=to, timeout=patience(60), check=False,
    )  # fmt: skip
    lines = (done.stderr or done.stdout).decode().splitlines()
    assert lines[:2] == ["one", "half a line"]
    assert json.loads(lines[2])["status"] == 3
    assert len(lines) == 3


def test_on_top_of_its_page_is_what_the_log_says_of_the_end(tmp_path: Path) -> None:
    """The command is a stand-in: it prints what a real vLLM printed whose worker was killed."""
    log = ROOT / "tests/data/logs/real-vllm/sigkill.log"
    done = guarded(tmp_path, f"print(open({str(log)!r}).read()); raise SystemExit(1)")
    assert done.said is not None
    run = the_run(tmp_path)
    page, markdown = (run / "report.html").read_text(), (run / "report.md").read_text()
    results = json.loads((run / "report.json").read_bytes())["steps"][0]["results"]
    assert results["decided_by"].startswith("Worker proc VllmWorker-0 died unexpectedly")
    assert (results["decided_process"], results["decided_pid"]) == ("EngineCore", 11758)
    assert (results["requests_answered"], results["requests_failed"], results["vllm"]) == (1, 1, "0.32.0")
    for text in (page, markdown):
        assert "prompts of 31 tokens" in text and "1 answered, 1 failed" in text and "0.32.0" in text
        assert text.index("1 answered, 1 failed") < text.index("Next")
        for away in (
            "another failure",
            "its condition does not hold",
            "only with -i",
            "CUDA_COREDUMP",
            "Application startup complete",
        ):
            assert away not in text
    assert "step 'guarded' failed" not in json.loads((run / "report.json").read_bytes())["why"]


def test_a_command_that_ends_well_is_all_that_is_heard(tmp_path: Path) -> None:
    done = guarded(tmp_path, "import sys; print(sys.stdin.read(), end=''); print('warned', file=sys.stderr)")
    assert (done.status, done.stdout, done.stderr, done.said) == (0, b"", b"warned\n", None)
    assert json.loads((the_run(tmp_path) / "report.json").read_bytes())["verdict"] == "passed"


def test_a_service_that_the_command_left_running_is_not_ended_in_silence(tmp_path: Path) -> None:
    done = guarded(tmp_path, "import subprocess; subprocess.Popen(['sleep', '600'])")
    assert (done.status, done.said) == (0, None)
    assert re.fullmatch(rb"vdbg-env guard: what its first process left had to be ended: sleep \(\d+\)\n", done.stderr)


def test_output_that_a_full_disk_took_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    """Without guard the write fails; with it the command was told that all is well, and so was its caller."""
    for code, status in (("print('lost')", 1), ("print('lost'); raise SystemExit(4)", 4)):
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                guard_command(sys.executable, "-c", code), env=environment(tmp_path), cwd=tmp_path, stdout=full,
                stderr=subprocess.PIPE, timeout=patience(60), check=False,
            )  # fmt: skip
        assert done.returncode == status
        assert b"output of the command is lost (stdout: No space left on device)\n" in done.stderr


COUNTED = """\
import os, sys
open(sys.argv[1], "a").write("x")
if os.environ.get("CALM"):
    sys.exit(0)
print("boom badly")
sys.exit(1)
"""
LADDER = """\
apiVersion: vdbg-env/v1
kind: Runbook
metadata: {name: ladder, title: A short ladder}
spec:
  inputs:
    argv: {type: array, required: true, description: The workload.}
  matchers:
    boom: {regex: 'boom (?P<what>[a-z]+)'}
  commands:
    workload: {argv: "${{ inputs.argv }}", timeout: 60s}
  steps:
    - id: baseline
      run: workload
      repeat: {count: 2, until: has(matched.boom)}
      outcomes:
        - reproduced: {when: has(matched.boom), message: "boom ${{ matched.boom.groups.what }}", next: changed}
        - unresolved: {next: changed}
    - id: changed
      run: workload
      env: {CALM: "1"}
      outcomes:
        - not_reproduced: {when: ended.clean, message: calm helps, next: end}
        - unresolved: {next: end}
"""


def test_a_ladder_that_begins_from_a_guarded_crash_runs_only_what_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("program.py", COUNTED), ("ladder.yaml", LADDER)):
        (tmp_path / name).write_text(text)
    words = (sys.executable, str(tmp_path / "program.py"), str(tmp_path / "count"))
    subprocess.run(guard_command(*words), env=environment(tmp_path), cwd=tmp_path, capture_output=True, check=False)
    known = the_run(tmp_path)
    monkeypatch.setenv("VDBG_ENV_RUNS", str(tmp_path / "runs"))
    ran = vdbg_env("runbook", str(tmp_path / "ladder.yaml"), "--from", known.name, "--batch", "--json")
    assert ran.status == 3, ran.stderr
    baseline, changed = json.loads(ran.stdout)["steps"]
    assert (baseline["outcome"], baseline["message"]) == ("reproduced", "boom badly")
    assert f"taken from step 'guarded' of run {known.name}, and not run again" in baseline["attempts"][0]["notes"]
    assert changed["outcome"] == "not_reproduced"
    assert (tmp_path / "count").read_text() == "xx"  # once under guard, once calm


def test_a_run_that_begins_from_another_needs_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the runbook of a run, and where that is a guard's, the one that its report leads to."""
    guarded(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    monkeypatch.setenv("VDBG_ENV_RUNS", str(tmp_path / "runs"))
    guards = the_run(tmp_path).name
    assert (
        json.loads(vdbg_env("runbook", "--from", guards, "--plan", "--json").stdout)["runbook"]["name"] == "host-crash"
    )
    (tmp_path / "runbooks").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runbooks/ladder.yaml").write_text(LADDER)
    run = tmp_path / "runs" / "one"
    assert vdbg_env("runbook", "ladder", "--batch", "--run-dir", str(run), "--", "true").status == 0
    assert json.loads(vdbg_env("runbook", "--from", str(run), "--plan", "--json").stdout)["runbook"]["name"] == "ladder"
    other = guarded(tmp_path / "runs", "raise SystemExit(3)")
    assert other.said
    told = vdbg_env("runbook", "--from", str(Path(other.said["report"]).parent), "--plan")
    assert told.status == 2 and "names no runbook" in told.stderr


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("nsenter"), reason="needs root, to make a PID namespace")
def test_process_one_of_a_container_reaps_what_it_adopts(tmp_path: Path) -> None:
    command = ["unshare", "--pid", "--fork", "--mount-proc", *guard_command(sys.executable, "-c", SERVES)]
    with subprocess.Popen(
        command, env=environment(tmp_path), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as outer:
        assert outer.stdout
        assert outer.stdout.readline() == b"ready\n"
        (one,) = (found.pid for found in processes() if found.parent == outer.pid)
        inside = ["nsenter", "--target", str(one), "--pid", "--mount", "sh", "-c", "(sleep 0.3; exit 7) & exit 0"]
        subprocess.run(inside, check=True, timeout=patience(20), stdout=subprocess.DEVNULL)
        until = time.monotonic() + patience(20)
        while len(children := [found for found in processes() if found.parent == one]) > 1:
            assert time.monotonic() < until, children
            time.sleep(0.1)
        os.kill(one, signal.SIGTERM)
        assert outer.wait(timeout=patience(60)) == 5


def test_without_a_place_for_its_record_the_command_runs_all_the_same(tmp_path: Path) -> None:
    done = guarded(tmp_path, "print('ran'); raise SystemExit(4)", VDBG_GUARD_RUNS="/proc/nowhere")
    assert (done.status, done.stdout) == (4, b"ran\n")
    assert done.stderr.startswith(b"vdbg-env guard: the command runs without its guard: no record can be made")


@pytest.mark.parametrize("free", [0, 8, 24, 64, 160, 300, 700])
def test_on_a_disk_that_is_nearly_full_the_command_runs_once(tmp_path: Path, free: int) -> None:
    with mounted(tmp_path / "full", "size=1m") as full:
        (full / "fill").write_bytes(bytes((1024 - free) << 10))
        code = "open('ran', 'a').write('x'); raise SystemExit(7)"
        done = guarded(tmp_path, code, VDBG_GUARD_RUNS=str(full / "runs"))
        recorded = list(full.glob("runs/*/steps/guarded/1/*/ended.json"))
    assert (done.status, (tmp_path / "ran").read_text()) == (7, "x")
    assert bool(recorded) is (b"the command runs without its guard: no record can be made" not in done.stderr)
    assert bool(recorded) is (done.said is not None) and (recorded or free < 700)


@pytest.mark.parametrize("flags", [("--disk-floor", "1000000g"), ("--log-limit", "64k")], ids=["disk", "limit"])
def test_a_log_that_was_not_recorded_is_not_said_to_have_no_reason(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """On a disk below its floor, one GiB where nothing is said, nothing is kept, and no line said so."""
    code = (
        "import sys, time\ntime.sleep(1.5)\nfill = 'a line that says nothing\\n' * 40000\n"
        "sys.stderr.write(fill); sys.stderr.write('ValueError: why\\n'); sys.stderr.write(fill); sys.exit(3)"
    )
    done = guarded(tmp_path, code, *flags)
    assert done.status == 3 and done.said is not None
    assert "why" not in done.said["found"] and "recorded log has no word" in done.said["found"]
    assert done.said["next"].startswith(
        f"read the end of its output: tail -n 50 {shlex.quote(str(the_run(tmp_path)))}/steps/"
    )
    last = done.stderr.decode().splitlines()[-1]
    assert last.startswith("vdbg-env guard: not recorded, and so not read: stderr: "), last
    assert (
        "bytes not recorded: the output limit, or too little free disk" in (the_run(tmp_path) / "report.md").read_text()
    )


def test_a_wrong_value_in_the_environment_keeps_no_command_from_starting(tmp_path: Path) -> None:
    wrong = {"VDBG_GUARD_KEEP": "many", "VDBG_GUARD_LOG_LIMIT": "lots", "VDBG_GUARD_HANG_AFTER": "soon"}
    done = guarded(tmp_path, "print('started')", **wrong)
    assert (done.status, done.stdout) == (0, b"started\n")
    for name in wrong:
        assert f"guard: {name} is left out, the default counts: ".encode() in done.stderr
    typed = subprocess.run(
        guard_command("true", flags=("--keep", "many")), env=environment(tmp_path), capture_output=True, check=False
    )
    assert typed.returncode == 2


def test_in_a_folder_that_was_removed_the_command_runs_all_the_same(tmp_path: Path) -> None:
    guarded = f"{sys.executable} -P -m vdbg_env guard -- sh -c 'echo ran; exit 4'"
    leave = f"mkdir gone && cd gone && rmdir ../gone && exec {guarded}"
    done = subprocess.run(
        ["sh", "-c", leave],
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        timeout=patience(60),
        check=False,
    )
    assert (done.returncode, done.stdout) == (4, b"ran\n")
    assert b"vdbg-env guard: the command runs without its guard: no record can be made" in done.stderr


def test_a_hook_and_the_termination_log_get_the_line(tmp_path: Path) -> None:
    message = tmp_path / "termination-log"
    hook = f"cat > '{tmp_path}/hooked'"
    done = guarded(tmp_path, "raise SystemExit(4)", "--termination-log", str(message), VDBG_GUARD_HOOK=hook)
    assert done.status == 4
    line = (tmp_path / "hooked").read_text()
    assert json.loads(line) == done.said
    assert message.read_text() == line.strip()


def moved(run: Path) -> None:
    run.rename(run.parents[1] / "elsewhere")


def replaced(run: Path) -> None:
    moved(run)
    run.symlink_to(run.parents[1])


@pytest.mark.parametrize("change", [moved, shutil.rmtree, replaced], ids=["moved", "removed", "replaced by a link"])
def test_a_record_that_is_taken_away_changes_no_status(tmp_path: Path, change: Callable[[Path], object]) -> None:
    code = "import sys; print('ready', flush=True); sys.stdin.read(); raise SystemExit(7)"
    with subprocess.Popen(
        guard_command(sys.executable, "-c", code), env=environment(tmp_path), cwd=tmp_path,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as guard:  # fmt: skip
        assert guard.stdout and guard.stdout.readline() == b"ready\n"
        change(the_run(tmp_path))
        guard.communicate(timeout=patience(60))
    assert guard.returncode == 7
