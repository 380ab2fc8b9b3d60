"""`vdbg-env dump` against real processes that make a pipe and write a dump as the CUDA driver does."""

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import pytest

from tests.builders.core_builder import hang_core
from tests.support import armed_program
from tests.support.command_line import vdbg_env
from vdbg_env.crash import dump as dump_module
from vdbg_env.crash.dump import (
    CorePipes,
    DumpStatus,
    DumpTarget,
    Fired,
    PipeState,
    _cannot_fire,
    _unfired,
    check_first_process,
    driver_of,
    dump,
    end_of_dumped,
    ends_dumped,
)

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((ROOT / "docs" / "schemas" / "dump-v1.schema.json").read_text())
PROGRAM = armed_program.__file__
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start the program in its own process group; whatever is left of it is ended with the test."""
    (tmp_path / "core").write_bytes(hang_core())
    started: list[subprocess.Popen[str]] = []

    def run(*argv: str, armed: bool = True, **env: str) -> "subprocess.Popen[str]":
        names = {
            "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1",
            "CUDA_COREDUMP_PIPE": f"{tmp_path}/pipe.%h.%p.%t",
            "CUDA_COREDUMP_FILE": f"{tmp_path}/dump.%h.%p.%t.nvcudmp",
        }
        process = subprocess.Popen(
            [sys.executable, PROGRAM, str(tmp_path / "core"), *argv],
            env=os.environ | (names if armed else {}) | env,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout
        assert process.stdout.readline() == "armed\n"
        return process

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def pipe_is_read(pid: int) -> bool:
    return any("pipe." in str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir())


def statuses(pid: int, *flags: str) -> list[str]:
    """Run `dump --json`, hold what it prints against the published schema, and return each process's status."""
    document = json.loads(vdbg_env("dump", "--json", *flags, str(pid)).stdout)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    return [process["status"] for process in document["processes"]]


def test_a_pipe_whose_name_holds_the_time_is_found_and_fired(start: Start, tmp_path: Path) -> None:
    process = start("--chunk-delay", "0.4")
    until(lambda: pipe_is_read(process.pid))
    ran = vdbg_env("dump", str(process.pid))
    assert ran.status == 0, ran.stdout + ran.stderr
    (file,) = tmp_path.glob("dump.*.nvcudmp")
    assert f"{process.pid} (python" in ran.stdout
    assert f"written {file}" in ran.stdout
    assert f"read with: vdbg-env core {file}" in ran.stdout
    assert file.read_bytes() == (tmp_path / "core").read_bytes()
    assert process.poll() is None, "the process goes on"


def test_every_process_of_the_tree_is_dumped(start: Start, tmp_path: Path) -> None:
    process = start("--children", "2")
    until(lambda: len(list(tmp_path.glob("pipe.*"))) == 3)
    time.sleep(0.3)
    document = json.loads(vdbg_env("dump", "--json", str(process.pid)).stdout)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    assert [p["status"] for p in document["processes"]] == ["written"] * 3
    assert all(p["complete"] and p["bytes_written"] > 0 for p in document["processes"])
    assert len({p["file"] for p in document["processes"]}) == 3


def test_workers_that_overwrote_their_environment_are_dumped_by_their_parent_s(start: Start, tmp_path: Path) -> None:
    process = start("--children", "1", "--rename-children")
    until(lambda: len(list(tmp_path.glob("pipe.*"))) == 2)
    time.sleep(0.3)
    document = json.loads(vdbg_env("dump", "--json", str(process.pid)).stdout)
    assert [p["status"] for p in document["processes"]] == ["written"] * 2
    assert document["processes"][1]["name"] == "VLLM::EngineCor"


@pytest.mark.parametrize(
    ("flags", "pipe", "named"),
    [(("--rename",), "my.cuda.pipe", {"CUDA_COREDUMP_PIPE": "my.cuda.pipe"}), ((), "corepipe", {})],
    ids=["its environment is overwritten", "only the driver's defaults"],
)
def test_a_process_whose_settings_are_not_known_is_dumped_by_the_default_names(
    start: Start, tmp_path: Path, flags: tuple[str, ...], pipe: str, named: dict[str, str]
) -> None:
    process = start(*flags, armed=False, CUDA_ENABLE_USER_TRIGGERED_COREDUMP="1", **named)
    until(lambda: any(pipe in str(link.readlink()) for link in Path(f"/proc/{process.pid}/fd").iterdir()))
    ran = vdbg_env("dump", str(process.pid))
    assert ran.status == 0, ran.stdout + ran.stderr
    assert str(next(tmp_path.glob("core_*.nvcudmp"))) in ran.stdout


def test_a_dump_that_is_never_whole_is_told(start: Start) -> None:
    process = start("--cut", "5000")
    until(lambda: pipe_is_read(process.pid))
    ran = vdbg_env("dump", "--timeout", "2.5", str(process.pid))
    assert ran.status == 1
    assert ": incomplete " in ran.stdout


def test_the_json_of_a_dump_that_is_never_whole(start: Start) -> None:
    process = start("--cut", "5000")
    until(lambda: pipe_is_read(process.pid))
    assert statuses(process.pid, "--timeout", "2.5") == ["incomplete"]


def test_a_process_that_ends_without_a_dump_is_told(start: Start) -> None:
    process = start("--end-when-fired")
    until(lambda: pipe_is_read(process.pid))
    ran = vdbg_env("dump", str(process.pid))
    assert ran.status == 1
    assert ": no-file: no dump appeared: the process ended first" in ran.stdout


def test_a_pipe_that_nobody_reads_is_stale(start: Start) -> None:
    process = start("--leave-pipe")
    ran = vdbg_env("dump", str(process.pid))
    assert ran.status == 1
    assert ": stale: there is a pipe without a reader" in ran.stdout
    assert statuses(process.pid) == ["stale"]


def test_armed_but_without_cuda_there_is_no_pipe(tmp_path: Path) -> None:
    env = os.environ | {"CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1"}
    with subprocess.Popen(["sleep", "60"], env=env, cwd=tmp_path) as process:
        try:
            until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
            ran = vdbg_env("dump", str(process.pid))
            assert statuses(process.pid) == ["no-pipe"]
        finally:
            process.kill()
    assert ran.status == 1
    assert f"{process.pid} (sleep): no-pipe: armed, but it has made no pipe" in ran.stdout


def test_no_wait_leaves_at_once(start: Start) -> None:
    process = start("--chunk-delay", "120")
    until(lambda: pipe_is_read(process.pid))
    before = time.monotonic()
    assert statuses(process.pid, "--no-wait") == ["fired"]
    assert time.monotonic() - before < 60


class _DriverGoes(CorePipes):
    """Has the driver close the pipe, or the process end, after the pipe was found and before it is fired."""

    def __init__(self, process: "subprocess.Popen[str]", ends: bool) -> None:
        self._process, self._ends = process, ends

    def fire(self, target: DumpTarget) -> Fired:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "gone\n"
        if self._ends:
            self._process.wait()
        return super().fire(target)


@pytest.mark.parametrize(
    ("ends", "cause"),
    [
        (False, "nothing reads it now: the driver has ended its CUDA context"),
        (True, "the process has ended"),
    ],
)
def test_a_driver_that_is_gone_when_the_pipe_is_fired(tmp_path: Path, ends: bool, cause: str) -> None:
    pipe = tmp_path / "pipe"
    script = f"mkfifo '{pipe}'; exec 3<>'{pipe}'; echo armed; read word; exec 3>&-; echo gone; "
    script += "exit" if ends else "sleep 60"
    env = os.environ | {"CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1", "CUDA_COREDUMP_PIPE": str(pipe)}
    with subprocess.Popen(
        ["sh", "-c", script], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "armed\n"
        report = dump(process.pid, 1, _DriverGoes(process, ends))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    (ended,) = report.processes
    assert ended.status is DumpStatus.FAILED
    assert cause in (ended.why or "")


def test_a_process_of_another_user_is_forbidden_and_says_as_whom_to_run() -> None:
    command = [sys.executable, "-m", "vdbg_env", "dump", "--json"]
    if os.geteuid() == 0:
        command = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", *command]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "builder")}
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        try:
            pid = sleeper.pid if os.geteuid() == 0 else 1  # the first process belongs to root
            ran = subprocess.run([*command, str(pid)], capture_output=True, text=True, check=False, env=env)
        finally:
            sleeper.kill()
    if ran.returncode == 126 or "No module named" in ran.stderr:
        pytest.skip("nobody may not read this Python or this folder")
    assert ran.returncode == 1, ran.stderr
    document = json.loads(ran.stdout)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    assert document["processes"][0] | {"name": ""} == {
        "pid": pid, "name": "", "namespace_pid": pid, "status": "forbidden", "pipe": None, "bytes_written": 0,
        "file": None, "reachable": None, "size": None, "complete": None,
        "why": "it may not be looked at: run as its user or as root",
    }  # fmt: skip


def test_root_is_not_told_to_be_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    target = DumpTarget(pid=1, name="x", namespace_pid=1, state=PipeState.FORBIDDEN)
    assert _unfired(target, None)[1] == "it may not be looked at: root needs CAP_SYS_PTRACE, which most containers lack"
    error = _cannot_fire(target, PermissionError(errno.EACCES, "Permission denied"))
    assert "root has no CAP_SYS_PTRACE" in (error.cause or "")
    assert error.next_step == "ls -l /proc/1/fd"


def test_a_process_that_is_not_armed_says_how_to_arm_it() -> None:
    ran = vdbg_env("dump", str(os.getpid()))
    assert ran.status == 2
    assert "is armed for a dump on request" in ran.stderr
    assert "vdbg-env dump --arm" in ran.stderr


def test_a_process_that_is_gone_is_bad_input() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    ran = vdbg_env("dump", str(process.pid))
    assert ran.status == 2
    assert f"no process {process.pid} here" in ran.stderr


def test_no_pid_is_bad_usage() -> None:
    assert vdbg_env("dump").status == 2


def test_the_arming_lines_are_read_by_a_shell(tmp_path: Path) -> None:
    shell = shutil.which("sh")
    assert shell
    folder = tmp_path / "with blank"
    script = vdbg_env("dump", "--arm", "--folder", str(folder)).stdout + 'printf %s "$CUDA_COREDUMP_FILE"'
    ran = subprocess.run([shell, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == f"{folder}/core.%h.%p.%t.nvcudmp"


def test_the_env_file_is_not_quoted() -> None:
    ran = vdbg_env("dump", "--arm", "--format", "env", "--folder", "/dumps")
    assert ran.stdout == (
        "CUDA_ENABLE_COREDUMP_ON_EXCEPTION=1\n"
        "CUDA_ENABLE_USER_TRIGGERED_COREDUMP=1\n"
        "CUDA_COREDUMP_SHOW_PROGRESS=1\n"
        "CUDA_COREDUMP_GENERATION_FLAGS=skip_nonrelocated_elf_images,skip_global_memory,skip_constbank_memory\n"
        "CUDA_COREDUMP_FILE=/dumps/core.%h.%p.%t.nvcudmp\n"
        "CUDA_COREDUMP_PIPE=/tmp/corepipe.cuda.%h.%p\n"
    )
    for full in (["--full"], ["--core", "full"]):
        printed = vdbg_env("dump", "--arm", *full, "--folder", "/dumps").stdout
        assert "CUDA_COREDUMP_GENERATION_FLAGS=skip_nonrelocated_elf_images\n" in printed
    light = vdbg_env("dump", "--arm", "--core", "light", "--folder", "/dumps").stdout
    assert "skip_shared_memory,skip_local_memory,skip_constbank_memory\n" in light


@pytest.mark.parametrize("folder", ["relative", "/with/%p", "/" + "x" * 1000])
def test_a_folder_the_driver_cannot_use_is_refused(folder: str) -> None:
    assert vdbg_env("dump", "--arm", "--folder", folder).status == 2


def test_what_becomes_of_a_process_is_told_before_its_dump(start: Start) -> None:
    process = start()
    ran = vdbg_env("dump", str(process.pid))
    assert "580.159.04 does (SIGABRT)" in ran.stderr
    document = json.loads(vdbg_env("dump", "--json", "--no-wait", str(start().pid)).stdout)
    assert (document["driver"], document["ends_processes"]) == (driver_of(process.pid), None)


@pytest.mark.parametrize(
    ("driver", "ends", "words"),
    [
        ("580.159.04", True, "driver 580.159.04 ends each process after its dump (SIGABRT; seen with 580.159.04)"),
        ("580.65.06", True, "driver 580.65.06 ends each process after its dump"),
        ("590.44", None, "whether driver 590.44 ends a process after its dump is not known"),
        (None, None, "whether this driver ends a process after its dump is not known"),
    ],
)
def test_nothing_is_said_of_drivers_that_were_not_seen(driver: str | None, ends: bool | None, words: str) -> None:
    assert ends_dumped(driver) is ends
    assert end_of_dumped(driver).startswith(words)


def test_the_driver_is_that_of_the_library_which_a_process_has_loaded(tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.580.159.04"
    library.write_bytes(bytes(4096))
    script = (
        f"import mmap, time; f = open({str(library)!r}, 'r+b'); m = mmap.mmap(f.fileno(), 0); "
        "print(1, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout and process.stdout.readline()
            assert driver_of(process.pid) == "580.159.04"
        finally:
            process.kill()


def test_the_first_process_is_not_dumped_without_being_asked_for() -> None:
    ran = vdbg_env("dump", "1")
    assert ran.status == 2
    assert ran.stderr.startswith("error: process 1 is the first of this machine or container: ")
    assert "try: the PID of the program, or vdbg-env dump --yes 1" in ran.stderr
    assert check_first_process(os.getpid()) is None


def test_who_says_yes_is_not_asked(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump_module, "check_first_process", lambda pid: f"process {pid} is the first")
    pid = str(start().pid)
    refused = vdbg_env("dump", "--no-wait", pid)
    assert (refused.status, refused.stdout) == (2, "")
    assert vdbg_env("dump", "--no-wait", "--yes", pid).status == 0
