"""Every test has a time limit of its own, and leaves no process behind.

A test that outlasts its limit fails with the stacks of all its processes, and what it started is killed. One that does
not end by that is ended by an exception; where this does not get through either, the process that runs it ends, which
xdist replaces. What a test leaves behind fails it too, and is killed. A plug-in of pytest, loaded by tests/conftest.py.

    @pytest.mark.limit(600)             in seconds, from the set-up of what it needs
    @pytest.mark.leaves("the reason")   what it starts is ended by a fixture of its module
"""

import contextlib
import faulthandler
import gc
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.support import reaper
from vdbg_env.supervisor.proc import Process, below, descendants, is_resource_tracker, process, processes, stack

# Far more than a test takes on a machine that is busy with something else.
UNIT_S, REAL_S, LONG_S = 300.0, 900.0, 3600.0
LONG = ("tests/slow", "tests/vllm_real", "tests/gpu", "tests/rehearsal")
UNIT = ("tests/unit", "tests/gpucore")
COLLECTION_S = 900.0
UNWIND_S = 10.0  # for a test whose processes were killed
TEAR_DOWN_S = 120.0  # for its fixtures
GONE_S = 10.0  # for what is ending when a test ends
STRIKE = signal.SIGRTMIN + 7  # nothing else sends it


class Overdue(BaseException):
    """A test outlasted its limit. Not an Exception: the code under test must not take it for one of its own."""


class Watch(threading.Thread):
    """Ends what takes too long in the main thread."""

    def __init__(self, terminal: int) -> None:
        super().__init__(name="limits of tests", daemon=True)
        self._terminal = terminal
        self._changed = threading.Condition()
        self._name, self._until, self._limit_s = "", float("inf"), 0.0
        self.known: set[Process] = set()  # which were there before the test
        self.may_stay: set[Process] = set()  # those of them that no fixture has to end
        self.struck = ""  # what is to be said of the test that runs

    def arm(self, name: str, limit_s: float) -> None:
        """Begin to wait for the end of something, anew."""
        with self._changed:
            self._name, self._limit_s, self._until = name, limit_s, time.monotonic() + limit_s
            self._changed.notify()

    def disarm(self) -> None:
        """End the wait."""
        self.arm("", float("inf"))

    def run(self) -> None:
        while True:
            with self._changed:
                left = self._until - time.monotonic()
                if left > 0:
                    self._changed.wait(min(left, 3600.0))
                    continue
                name, until, limit_s = self._name, self._until, self._limit_s
            self._strike(name, limit_s)
            for _ in range(3):
                with self._changed:
                    if self._until != until or self._changed.wait_for(lambda: self._until != until, UNWIND_S):  # noqa: B023
                        break
                signal.pthread_kill(threading.main_thread().ident or 0, STRIKE)
                kill(self._its_processes())
            else:
                os.write(self._terminal, f"\n{self.struck}\nit did not end: this process does\n".encode())
                os._exit(70)

    def _strike(self, name: str, limit_s: float) -> None:
        its = self._its_processes()
        self.struck = f"{name} took longer than its limit of {limit_s:g} s\n\n{own_stacks()}\n{stacks(its)}"
        kill(its)

    def _its_processes(self) -> list[Process]:
        return [one for one in tree() if one not in self.known]


class _State:
    """What this process knows of itself."""

    parent = 0  # of this process: the reaper, to which orphans come; 0 without one
    watch: Watch | None = None
    owned: dict[object, set[Process]] = {}  # noqa: RUF012 - by fixture that lives longer than a test
    is_limited = True


def tree() -> list[Process]:
    """Return all processes that tests have started here and that live, orphans too."""
    try:
        pids, queue = set[int](), [_State.parent or os.getpid()]
        while queue:
            for task in Path(f"/proc/{queue.pop()}/task").iterdir():
                children = {int(pid) for pid in (task / "children").read_text().split()}
                queue += children - pids
                pids |= children
        found = [one for pid in pids if (one := process(pid))]
    except OSError:  # one has just ended, or this kernel does not show children
        found = descendants(_State.parent or os.getpid())
    alive = (one for one in found if one.state not in "ZX" and one.pid != os.getpid())
    return [one._replace(name="", state="", parent=0) for one in alive]  # these may change


def kill(them: Iterable[Process]) -> None:
    """Kill processes."""
    for one in them:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(one.pid, signal.SIGKILL)


def own_stacks() -> str:
    """Return the stacks of this process's threads."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return file.read().decode("utf-8", "replace")


def stacks(them: Iterable[Process]) -> str:
    """Return what each process is, and where its threads are."""
    texts = []
    py_spy = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    for one in them:
        if now := process(one.pid):
            texts.append(f"process {one.pid} of {now.parent}, state {now.state}: {command_line(one.pid)}")
            texts.append(stack(one.pid))
            if py_spy and "python" in command_line(one.pid):
                with contextlib.suppress(subprocess.SubprocessError, OSError):
                    dump = [py_spy, "dump", "--nonblocking", "--pid", str(one.pid)]
                    ran = subprocess.run(dump, capture_output=True, text=True, timeout=20, check=False)
                    texts.append(ran.stdout)
    return "\n".join(texts)


def command_line(pid: int) -> str:
    """Return what a process was started with."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode("utf-8", "replace").split("\0")
    except OSError:
        return "?"
    return shlex.join(words)[:500]


def limit_of(item: pytest.Item) -> float:
    """Return the limit of a test in seconds."""
    if marker := item.get_closest_marker("limit"):
        return float(marker.args[0])
    if item.get_closest_marker("long") or item.nodeid.startswith(LONG):
        return LONG_S
    return UNIT_S if item.nodeid.startswith(UNIT) else REAL_S


def left_behind() -> list[Process]:
    """Return what lives of the test that has ended, after a moment in which it may end."""
    assert _State.watch
    limit = time.monotonic() + GONE_S
    while left := _unowned(_State.watch.may_stay):
        gc.collect()  # what ends with an object that is no longer used
        if time.monotonic() > limit:
            break
        time.sleep(0.05)
    return left


def _unowned(may_stay: set[Process]) -> list[Process]:
    new = [one for one in tree() if one not in may_stay]
    if not new:
        return []
    owned = _owned()
    return [one for one in new if one.pid not in owned and not _is_ours(one.pid)]


def _owned() -> set[int]:
    """Return what fixtures have started that live longer than a test, and what that has started."""
    roots = {one.pid for owned in _State.owned.values() for one in owned}
    return roots | {one.pid for one in below(roots, processes())} if roots else roots


def _is_ours(pid: int) -> bool:
    """Whether Python started it for this process, and ends it with it, or it is for all tests."""
    return is_resource_tracker(pid) or "multiprocessing.forkserver" in command_line(pid) or reaper.stays(pid)


# -- pytest ------------------------------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "limit(seconds): how long the test may take with all that it needs")
    config.addinivalue_line("markers", "leaves(reason): what the test starts is ended by a fixture of its module")
    if hasattr(config, "workerinput"):
        given = int(os.environ.pop("VDBG_TESTS_REAPER", "0"))
        _State.parent = given if given == os.getppid() else 0
    else:
        _State.parent = os.getpid()
        reaper.adopt()
        if child := os.fork():
            reaper.look_after(child)
        reaper.die_with(_State.parent)
    _State.is_limited = not (config.getoption("usepdb") or config.getoption("trace"))
    signal.signal(STRIKE, _overdue)
    _State.watch = Watch(os.dup(2))
    _State.watch.start()


def pytest_cmdline_main(config: pytest.Config) -> None:
    """Have each process of xdist started by a reaper of its own."""
    words = shlex.join([sys.executable, "-I", "-S", reaper.__file__, sys.executable])
    tx: list[str] = getattr(config.option, "tx", None) or []
    config.option.tx = [f"{one}//python={words}" if one.endswith("popen") else one for one in tx]


def _overdue(_number: int, _frame: FrameType | None) -> None:
    raise Overdue(_State.watch.struck if _State.watch else "")


def pytest_enter_pdb() -> None:
    """Let a person take the time."""
    _State.is_limited = False
    if _State.watch:
        _State.watch.disarm()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    watch = _State.watch
    if watch and _State.is_limited:
        watch.arm("the collection of the tests", COLLECTION_S)
    try:
        return (yield)
    finally:
        if watch:
            watch.disarm()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    if (watch := _State.watch) and _State.is_limited:
        watch.known, watch.struck = set(tree()), ""
        owned = _owned()
        watch.may_stay = {one for one in watch.known if one.pid not in owned}
        watch.arm(item.nodeid, limit_of(item))
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    if fixturedef.scope == "function":
        return (yield)
    before = set(tree())
    try:
        return (yield)
    finally:
        _State.owned[fixturedef] = set(tree()) - before


def pytest_fixture_post_finalizer(fixturedef: pytest.FixtureDef[Any]) -> None:
    _State.owned.pop(fixturedef, None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    watch = _State.watch
    try:
        yield
        if watch and _State.is_limited and not item.get_closest_marker("leaves") and (left := left_behind()):
            text = f"{item.nodeid} left behind:\n{stacks(left)}"
            kill(left)
            pytest.fail(text, pytrace=False)
    finally:
        if watch:
            watch.disarm()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if (watch := _State.watch) and watch.struck:
        report.outcome = "failed"
        report.longrepr = f"{watch.struck}\n{report.longreprtext}"
        watch.struck = ""
        if report.when != "teardown":
            watch.arm(f"the tear-down of {item.nodeid}", TEAR_DOWN_S)
    return report
