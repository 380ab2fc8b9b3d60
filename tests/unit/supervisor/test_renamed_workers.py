"""Workers that rename themselves as vLLM's do, with the package it uses: their environment is known, or is unknown."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.steps import python, seen
from vdbg_env.supervisor.proc import process
from vdbg_env.supervisor.watch import WorkerCensus

ASKED: dict[str, str | None] = {"CUDA_LAUNCH_BLOCKING": "1"}
TITLE = "import setproctitle; setproctitle.setproctitle('VLLM::EngineCore')"
RENAMED = "VLLM::EngineCor"  # the kernel keeps 15 bytes
WAITS = "print('here', flush=True); input()"


def test_spawned_workers_that_rename_themselves_keep_their_environment(tmp_path: Path) -> None:
    child = f"{TITLE}; import time; time.sleep(1.5)"
    code = f"import subprocess,sys\nsubprocess.run([sys.executable,'-c',{child!r}])\nsys.exit(1)"
    found = seen(tmp_path, python(code, env=ASKED))
    assert [(w.seen, w.known) for w in found.workers] == [(ASKED, True), (ASKED, True)]
    assert found.workers[1].name == RENAMED


def test_our_variable_wins_over_the_users_and_yields_to_the_steps(tmp_path: Path) -> None:
    show = python("import os; print(os.environ.get('SPT_NOENV'))")
    for number, (invocation, value) in enumerate(
        [(show, b"1\n"), (python(show.argv[2], env={"SPT_NOENV": None}), b"None\n")]
    ):
        found = seen(home := tmp_path / str(number), invocation, env={"SPT_NOENV": ""})
        assert (home / "run" / found.directory / "stdout").read_bytes() == value


@contextmanager
def started(code: str, env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run `code`; it is where it waits for the first line of its input."""
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout and child.stdout.readline() == "here\n"
        try:
            yield child
        finally:
            child.kill()


def go_on(child: "subprocess.Popen[str]") -> str:
    assert child.stdin and child.stdout
    child.stdin.write("\n")
    child.stdin.flush()
    return child.stdout.readline().strip()


def look(census: WorkerCensus, *pids: int) -> list[tuple[str, dict[str, str | None] | None]]:
    census.look([found for pid in pids if (found := process(pid))])
    return [(worker.name, worker.seen) for _, worker in census.workers()]


def test_what_was_overwritten_before_the_first_look_is_unknown_and_not_unset() -> None:
    with started(f"{TITLE}; {WAITS}", {"CUDA_LAUNCH_BLOCKING": "1"}) as child:
        assert look(WorkerCensus(ASKED, child.pid), child.pid) == [(RENAMED, None)]


def test_a_reading_outlives_what_overwrites_it() -> None:
    with started(f"{WAITS}; {TITLE}; {WAITS}", {"CUDA_LAUNCH_BLOCKING": "1"}) as child:
        census = WorkerCensus(ASKED, child.pid)
        assert look(census, child.pid)[0][1] == ASKED
        assert go_on(child) == "here"
        assert look(census, child.pid) == [(RENAMED, ASKED)]


def test_a_fork_was_given_what_its_parent_was_started_with() -> None:
    code = f"import os\n{WAITS}\nif os.fork() == 0:\n {TITLE}; print(os.getpid(), flush=True); input()\nos.wait()"
    with started(code, {"CUDA_LAUNCH_BLOCKING": "1"}) as child:
        census = WorkerCensus(ASKED, child.pid)
        look(census, child.pid)
        fork = int(go_on(child))
        assert look(census, child.pid, fork)[1] == (RENAMED, ASKED)
        go_on(child)


def test_an_exec_makes_what_was_read_before_it_void() -> None:
    """The launcher had the variable; what it became was given none of it, and has overwritten even that."""
    after = f"{TITLE}; {WAITS}"
    code = f"import os,sys\n{WAITS}\nos.execve(sys.executable, [sys.executable, '-c', {after!r}], {{'A': '1'}})"
    with started(code, {"CUDA_LAUNCH_BLOCKING": "1"}) as child:
        census = WorkerCensus(ASKED, child.pid)
        assert look(census, child.pid)[0][1] == ASKED
        assert go_on(child) == "here"
        assert look(census, child.pid) == [(RENAMED, None)]


def test_an_empty_environment_is_known_to_lack_the_variable() -> None:
    with started(WAITS, {}) as child:
        assert look(WorkerCensus(ASKED, child.pid), child.pid)[0][1] == {"CUDA_LAUNCH_BLOCKING": None}


def test_a_compiler_s_many_processes_leave_room_for_workers() -> None:
    with started(WAITS, {"CUDA_LAUNCH_BLOCKING": "1"}) as child:
        census = WorkerCensus(ASKED, child.pid)
        sleepers = [subprocess.Popen(["sleep", "60"]) for _ in range(520)]
        try:
            look(census, *(one.pid for one in sleepers))
            assert look(census, child.pid)[0][1] == ASKED
        finally:
            for one in sleepers:
                one.kill()
                one.wait()
