"""Runs the command line, as `python -m vdbg_env` and as the installed program.

A command under `guard` starts whatever is broken here. So this file needs the standard library alone, and what cannot
be imported, or fails before the command has started, makes way for the command.
"""

import os
import sys

_GUARD = "guard"
_VALUED = {
    "--runs", "--keep", "--keep-size", "--log-limit", "--disk-floor", "--hang-after", "--core",
    "--exit-status-on-crash", "--hook", "--termination-log",
}  # fmt: skip
_SWITCHES = {"--full-core", "--memory-map", "--no-memory-map"}
_CANNOT_RUN, _NOT_FOUND = 126, 127  # as a shell says it
_SHELL = "/bin/sh"
_LOOKED_AT = 128  # bytes, of which a program has a zero among the first


def prefer_own_modules(path: list[str], given: list[str], home: str) -> list[str]:
    """Return the path of imports with the folders that the user gave at its end; `home` has this package.

    PYTHONPATH and the current folder are the workload's: a `json.py` there must not become a part of this program.
    """
    library = os.path.dirname(os.__file__)  # noqa: PTH120 - pathlib would be imported from the path as it is
    own = [place for place in path if place not in given]
    if home in given:  # installed by `pip --target`, or not at all
        after = [number for number, place in enumerate(own, 1) if place in {library, f"{library}/lib-dynload"}]
        own.insert(max(after, default=0), home)
    return own + [place for place in path if place in given and place != home]


def _given_folders() -> list[str]:
    """Return the folders on the path of imports that come from the user: Python has put them first."""
    variable = "" if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "")
    given = [os.path.abspath(place) for place in variable.split(os.pathsep) if variable]  # noqa: PTH100
    return given if sys.flags.safe_path else [*sys.path[:1], *given]


_HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
sys.path[:] = prefer_own_modules(sys.path, _given_folders(), _HOME)

import gc  # noqa: E402
from errno import ENOEXEC  # noqa: E402
from signal import SIG_DFL, SIGINT, SIGPIPE, SIGXFSZ, default_int_handler, getsignal, signal  # noqa: E402

# Ctrl-C while Python imports ends it as it ends any program, without a traceback; `main` answers it in words. What was
# started with Ctrl-C ignored (nohup) still ignores it.
if getsignal(SIGINT) is default_int_handler:
    signal(SIGINT, SIG_DFL)

# What imports make stays. To look through it again and again takes 6 % of a start; a command has it enabled.
gc.disable()


def main() -> int:
    """Run the command line and return its exit status; a guarded command runs even where that cannot be."""
    command = guarded_command(sys.argv[1:])
    try:
        from vdbg_env.cli import main as run
    except Exception as error:
        if not command:
            raise
        return _run_unguarded(command, error)
    if getsignal(SIGINT) is SIG_DFL:
        signal(SIGINT, default_int_handler)
    return run(instead=(lambda error: _run_unguarded(command, error)) if command else None)


def guarded_command(words: list[str]) -> list[str]:
    """Return the command that `vdbg-env guard` is to start, empty where these words start none; click reads the same.

    Options of guard may also stand between the words of a command, up to `--`.
    """
    rest = list(words)
    while rest and (rest[0] == "--verbose" or (len(rest[0]) > 1 and rest[0].strip("v") == "-")):
        rest.pop(0)
    if rest[:1] != [_GUARD]:
        return []
    rest.pop(0)
    command: list[str] = []
    while rest:
        word = rest.pop(0)
        name, equals, _ = word.partition("=")
        if word == "--":
            return command + rest
        if not word.startswith("-") or word == "-":
            command.append(word)
        elif name in _VALUED and (equals or rest):
            del rest[: not equals]
        elif word not in _SWITCHES:  # one that answers and starts nothing, or a wrong one
            return []
    return command


def _run_unguarded(command: list[str], error: Exception) -> int:
    """Run the command in place of this process, as if there were no guard; returns a status where it cannot start."""
    what = getattr(error, "what", "") or f"{type(error).__name__}: {error}"
    _say(f"the command runs without its guard: {what}")
    for number in (SIGPIPE, SIGXFSZ):  # which Python ignores, and a program that it becomes would
        signal(number, SIG_DFL)
    if not command[0]:
        _say("the name of the command is empty")
        return _NOT_FOUND
    try:
        os.execvp(command[0], command)
    except OSError as error:
        if error.errno == ENOEXEC and (script := _find_script(command[0])):
            os.execv(_SHELL, [_SHELL, script, *command[1:]])
        _say(f"{command[0]} cannot be started: {error.strerror}")
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _CANNOT_RUN


def _find_script(name: str) -> str | None:
    """Return where a text without a `#!` line is, which execvp(3) gives to the shell; None for what is no text."""
    places = [""] if "/" in name else os.get_exec_path()
    for path in (os.path.join(place, name) for place in places):  # noqa: PTH118
        if os.access(path, os.X_OK) and os.path.isfile(path):  # noqa: PTH113
            with open(path, "rb") as file:  # noqa: PTH123
                return None if b"\0" in file.read(_LOOKED_AT) else path
    return None


def _say(text: str) -> None:
    line = " ".join("".join(c if c.isprintable() else " " for c in f"vdbg-env guard: {text}").split())
    try:
        os.write(2, line.encode("utf-8", "backslashreplace") + b"\n")
    except OSError:  # its reader has gone, or its disk is full
        return


if __name__ == "__main__":
    sys.exit(main())
