"""Read the processes of this machine from /proc, and signal them: the one reader of it.

The supervisor runs in the Python of any image, where psutil is not installed, so everything else reads through this
module too.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable
from typing import NamedTuple

_NAME_BYTES = 15  # TASK_COMM_LEN without its zero
_TITLE_MOST = 80
_TICKS = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """One process: `start` in clock ticks since boot, which together with the pid names it for good."""

    pid: int
    parent: int
    name: str
    state: str
    start: int


class Environment(NamedTuple):
    """A reading of /proc/[pid]/environ: `variables` is None when unknown, `image` names the exec that they are of."""

    image: tuple[int, ...]
    variables: dict[bytes, bytes] | None


def process(pid: int) -> Process | None:
    """Return what /proc reports about `pid`, or None when it is gone (proc(5), /proc/[pid]/stat)."""
    text = _read(f"/proc/{pid}/stat")
    if not text:
        return None
    # The name may hold blanks and brackets, so the fields are counted from the last bracket.
    head, _, tail = text.rpartition(b")")
    fields = tail.split()
    return Process(
        pid, int(fields[1]), head.partition(b"(")[2].decode("utf-8", "replace"), fields[0].decode(), int(fields[19])
    )


def exit_status(pid: int) -> int | None:
    """Return the wait status of a process that has ended and whose parent has not taken it yet, else None."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[49]) if len(fields) > 49 and fields[0] in {b"Z", b"X"} else None


class Terminal(NamedTuple):
    """The terminal of a process: whether what is typed there goes to the group of that process."""

    in_front: bool


def terminal_of(pid: int) -> Terminal | None:
    """Return the terminal that controls a process, or None without one (proc(5), /proc/[pid]/stat)."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if not fields or int(fields[4]) == 0:
        return None
    return Terminal(in_front=fields[2] == fields[5])


def title(one: Process) -> str:
    """Return the name of a process, whole where it has renamed itself: the kernel keeps 15 bytes of it."""
    if len(one.name.encode()) < _NAME_BYTES:
        return one.name
    whole = _read(f"/proc/{one.pid}/cmdline").partition(b"\0")[0].decode("utf-8", "replace").strip()
    return whole if whole.startswith(one.name) and len(whole) < _TITLE_MOST else one.name


def processor_s(pid: int) -> float:
    """Return the processor time that `pid` has used, in seconds; 0 where it is gone."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS if len(fields) > 12 else 0.0


def available_memory() -> int:
    """Return how many bytes programs can still have without swapping (proc(5), /proc/meminfo)."""
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith(b"MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def boot_id() -> str:
    """Return what names this boot of the kernel: pids and start times of an earlier one mean other processes."""
    with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123
        return file.read().strip()


def is_alive(pid: int) -> bool:
    """Return whether `pid` exists and is not a zombie."""
    one = process(pid)
    return one is not None and one.state not in "ZX"


def processes() -> list[Process]:
    """Return every process that /proc shows."""
    names = os.listdir("/proc")  # noqa: PTH208 - a Path per process would cost more than the look itself
    return [found for name in names if name.isdigit() and (found := process(int(name)))]


def descendants(root: int, *, without: Iterable[int] = ()) -> list[Process]:
    """Return every living process below `root`, parents before children; subtrees of `without` are left out."""
    return below((root,), processes(), without=without)


def below(roots: Iterable[int], among: Iterable[Process], *, without: Iterable[int] = ()) -> list[Process]:
    """Return the living ones of `among` below any of `roots`, parents before children; see `descendants`."""
    children: dict[int, list[Process]] = {}
    for one in among:
        children.setdefault(one.parent, []).append(one)
    queue = list(roots)
    passed, found = {*queue, *without}, []
    while queue:
        for child in children.get(queue.pop(), ()):
            if child.pid not in passed:
                passed.add(child.pid)
                queue.append(child.pid)
                if child.state not in "ZX":
                    found.append(child)
    return found


def environment(pid: int) -> Environment | None:
    """Return what can be read of the environment `pid` was started with; None when it has no memory, or none yet.

    A process that renames itself (setproctitle, which vLLM calls in each of its processes) overwrites the place with
    zeros or with its title: what was there is then unknown, and must not be taken for unset.
    """
    image = _image(pid)
    if image is None:
        return None
    text = _read(f"/proc/{pid}/environ")
    if image != _image(pid):
        return None  # it called exec in between; the next look reads the new program
    start, end = image[-2:]
    if not text:
        # Not permitted is unknown; a program that was given no variable at all has an empty place.
        return Environment(image, {} if start == end and start else None)
    entries = text[:-1].split(b"\0")
    if not text.endswith(b"\0") or not all(b"=" in entry for entry in entries):
        return Environment(image, None)
    return Environment(image, {name: value for name, _, value in (entry.partition(b"=") for entry in entries)})


def _image(pid: int) -> tuple[int, ...] | None:
    """Return what an exec gives anew and a fork passes on: where code, stack and environment are (proc(5), stat)."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if not fields or fields[23] == b"0":
        return None  # gone, or a zombie
    return tuple(int(fields[number]) for number in (23, 24, 25, 47, 48))


def inherited_environment(pid: int) -> dict[bytes, bytes] | None:
    """Return the environment of `pid`, or of its nearest ancestor whose environment was not overwritten.

    A worker that renames itself was, as a rule, started with what its parent has. None where no ancestor's is known;
    raises PermissionError where that of `pid` may not be read.
    """
    with open(f"/proc/{pid}/environ", "rb"):  # noqa: PTH123 - only to distinguish "not permitted" from "overwritten"
        pass
    one = process(pid)
    while one:
        found = environment(one.pid)
        if found and found.variables is not None:
            return found.variables
        one = process(one.parent)
    return None


def executable(pid: int) -> str:
    """Return the path of the program `pid` runs, or an empty text."""
    try:
        return os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115 - pathlib would cost the scribe 3 ms of its start
    except OSError:
        return ""


def uses_cuda(pid: int) -> bool:
    """Whether the driver's library is mapped into `pid`."""
    return b"/libcuda.so" in _read(f"/proc/{pid}/maps")


def is_resource_tracker(pid: int) -> bool:
    """Whether `pid` is what multiprocessing starts to remove shared memory after its users (CPython 3.8 and later)."""
    return b"multiprocessing.resource_tracker" in _read(f"/proc/{pid}/cmdline")


def stack(pid: int) -> str:
    """Return where each thread of `pid` waits, as the kernel reports it."""
    lines = []
    try:
        threads = sorted(os.listdir(f"/proc/{pid}/task"), key=int)  # noqa: PTH208
    except OSError:
        return ""
    for thread in threads:
        base = f"/proc/{pid}/task/{thread}"
        name, where = _read(f"{base}/comm").decode("utf-8", "replace").strip(), _read(f"{base}/wchan").decode()
        state = next(
            (x.split()[1] for x in _read(f"{base}/status").decode().splitlines() if x.startswith("State")), "?"
        )
        lines.append(f"  thread {thread} {name}: state {state}, waits in {where if where not in {'', '0'} else '-'}")
        lines += [f"      {x}" for x in _read(f"{base}/stack").decode("utf-8", "replace").splitlines()[:20]]
    return "\n".join(lines)


def marked(name: bytes, value: bytes) -> list[Process]:
    """Return every process of this machine whose environment holds `name=value`, this one left out."""
    found = []
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        if name + b"=" + value in _read(f"/proc/{entry}/environ").split(b"\0"):
            one = process(int(entry))
            if one and one.state not in "ZX":
                found.append(one)
    return found


def namespace_pid(pid: int) -> int:
    """Return the number of `pid` inside its innermost PID namespace, or `pid` where the kernel does not report it."""
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return pid


def open_files(pid: int) -> dict[int, str]:
    """Return the descriptors of `pid` and what each leads to; raises OSError when they may not be read."""
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
        try:
            found[int(name)] = os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115
        except OSError:
            continue  # closed since the folder was listed
    return found


def opened_for_reading(pid: int, descriptor: int) -> bool:
    """Return whether a descriptor of `pid` may be read from."""
    for line in _read(f"/proc/{pid}/fdinfo/{descriptor}").splitlines():
        if line.startswith(b"flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE in {os.O_RDONLY, os.O_RDWR}
    return False


def path_from_here(pid: int, path: str) -> str:
    """Return the path by which this process reaches a path of `pid`; a relative one starts in its working folder."""
    if not path.startswith("/"):
        try:
            path = f"{os.readlink(f'/proc/{pid}/cwd')}/{path}"  # noqa: PTH115
        except OSError:
            return f"/proc/{pid}/cwd/{path}"
    return path if _same_files(pid) else f"/proc/{pid}/root{path}"


def _same_files(pid: int) -> bool:
    """Return whether `pid` sees the same files under the same names as this process."""
    try:
        return all(
            os.readlink(f"/proc/self/{name}") == os.readlink(f"/proc/{pid}/{name}")  # noqa: PTH115
            for name in ("ns/mnt", "root")
        )
    except OSError:
        return False


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return b""


# -- Signals to processes and groups, and a life that is tied to its parent's ------------------------------------------

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Make this process the parent of every orphan below it; raises OSError where the kernel refuses."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def die_with_parent(parent: int) -> None:
    """Have this process killed when its parent dies, and end it now if that is dead; called in a child after fork."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it died before that could be asked for


def send(processes: Iterable[Process], number: int) -> list[Process]:
    """Send a signal to each; return those that may not be signalled.

    A number may have passed on to another process since it was read: what is signalled is the one that was seen.
    """
    refused = []
    for target in processes:
        try:
            _send(target, number)
            if number != signal.SIGKILL:
                _send(target, signal.SIGCONT)  # a stopped process would never see the signal
        except ProcessLookupError:
            continue
        except PermissionError:
            refused.append(target)
    return refused


def _send(target: Process, number: int) -> None:
    try:
        descriptor = os.pidfd_open(target.pid)
    except ProcessLookupError:
        raise
    except OSError:  # a kernel older than 5.3, or a seccomp filter
        _check_same(target)
        os.kill(target.pid, number)
        return
    try:
        _check_same(target)  # of the process that the descriptor holds: it no longer becomes another
        signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def _check_same(target: Process) -> None:
    one = process(target.pid)
    if one is None or one.start != target.start:
        raise ProcessLookupError


def send_to(pid: int, number: int) -> None:
    """Send a signal to one process; one that is gone, or of another user, is left alone."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def send_to_group(leader: int, number: int) -> None:
    """Send a signal to the process group of `leader`; a group that is gone, or of another user, is left alone."""
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        return
