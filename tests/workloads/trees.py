"""Starts one detached process of each kind that is hard to end: `trees.py FOLDER`. Their pids go into FOLDER/pids.

They rename themselves and lose their environment (setproctitle), leave their session, fork twice, start with an empty
environment (`env -i setsid`), or are stopped under ptrace. All ignore polite signals. The first process stays, too.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import setproctitle


def stay() -> NoReturn:
    while True:
        time.sleep(60)


def title() -> NoReturn:
    os.setsid()
    setproctitle.setproctitle("VLLM::EngineCore")
    stay()


def session() -> NoReturn:
    os.setsid()
    stay()


def double() -> NoReturn:
    os.setsid()
    if os.fork():
        os._exit(0)
    note()
    stay()


def bare() -> NoReturn:
    os.execvp("env", ["env", "-i", "setsid", "sleep", "3600"])


def traced() -> NoReturn:
    """Be traced by the parent, and stop: such a process answers no signal but SIGKILL."""
    ctypes.CDLL(None, use_errno=True).ptrace(0, 0, 0, 0)  # PTRACE_TRACEME
    os.kill(os.getpid(), signal.SIGSTOP)
    stay()


KINDS: tuple[Callable[[], NoReturn], ...] = (title, session, double, bare, traced)


def note() -> None:
    with (Path(sys.argv[1]) / "pids").open("a") as file:
        file.write(f"{os.getpid()}\n")


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for kind in KINDS:
        if os.fork() == 0:
            if kind is not double:
                note()
            kind()
    while len((Path(sys.argv[1]) / "pids").read_text().split() if (Path(sys.argv[1]) / "pids").exists() else ()) < len(
        KINDS
    ):
        time.sleep(0.01)
    print("ready", flush=True)
    stay()
