"""What /proc says of processes and their threads, and what a shell makes of their ends."""

import contextlib
import os
import signal
from pathlib import Path


def tasks(process):
    """Return the threads of a process."""
    try:
        return [int(one.name) for one in Path(f"/proc/{process}/task").iterdir()]
    except OSError:
        return []


def descendants():
    """Return all processes below this one."""
    children = {}
    for name in filter(str.isdigit, (one.name for one in Path("/proc").iterdir())):
        parent = field_of(name, "PPid")
        if parent is not None:
            children.setdefault(int(parent), []).append(int(name))
    found = [os.getpid()]
    for one in found:
        found += children.get(one, [])
    return found[1:]


def holders(descriptor, processes):
    """Return those of the processes that have open what this one has open as `descriptor`; of a pipe, either end."""
    file = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
    return [one for one in processes if file in _open_files(one)]


def _open_files(process):
    files = set()
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                files.add(os.readlink(link))  # noqa: PTH115
    return files


def process_of(task):
    """Return the process of a thread, None when it is gone."""
    group = field_of(task, "Tgid")
    return int(group) if group else None


def state_of(task):
    """Return the letter of a thread's state, None when it is gone."""
    return (field_of(task, "State") or " ")[0].strip() or None


def field_of(task, name):
    """Return a field of /proc/TASK/status, None when the task is gone."""
    try:
        for line in Path(f"/proc/{task}/status").read_text(errors="replace").splitlines():
            if line.startswith(name + ":"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return None


def title(process):
    """Return how a process calls itself, in one line and without parentheses, as far as there is room."""
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes()[:4096].rstrip(b"\0").split(b"\0")
    except OSError:
        return "?"
    text = " ".join(Path(word.decode(errors="replace")).name for word in words[:3])
    kept = "".join(letter if letter.isprintable() and letter not in "()" else " " for letter in text)
    return " ".join(kept.split())[:80] or "?"


def name_of(number):
    """Return a signal's name, "" for one without."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


def exit_status(status):
    """Return what a shell makes of a process's end: its exit status, or 128 and the number of a signal."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
