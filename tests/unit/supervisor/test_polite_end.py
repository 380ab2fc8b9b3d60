"""Who of a tree is asked to end, and when.

The roots are stand-ins: one that ends its child in order, one that loses the first signal as `vllm serve` 0.32.0 does
while it starts (2026-11-22: asked once it was still there after 75 s), and one that passes nothing on.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.patience import patience
from vdbg_env.supervisor.proc import descendants, process
from vdbg_env.supervisor.process_tree import PoliteEnd

TREE = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', '''
import signal, time
signal.signal(signal.SIGTERM, lambda *_: (print('child asked', flush=True), exit(0)))
print('child up', flush=True)
while True: time.sleep(0.05)
'''])
asked = 0
def term(*_):
    global asked
    asked += 1
    print('root asked', asked, flush=True)
    {handler}
signal.signal(signal.SIGTERM, term)
while True: time.sleep(0.05)
"""
IN_ORDER = "child.terminate(); child.wait(); os._exit(0)"
LOST_ONCE = "asked < 2 or (child.terminate(), child.wait(), os._exit(0))"
PASSES_NOTHING_ON = "pass"


@contextmanager
def tree(handler: str) -> Iterator[subprocess.Popen[str]]:
    root = subprocess.Popen([sys.executable, "-c", TREE.format(handler=handler)], stdout=subprocess.PIPE, text=True)
    below = []
    try:
        assert root.stdout is not None
        assert root.stdout.readline() == "child up\n"
        below = descendants(root.pid)
        yield root
    finally:
        for pid in (root.pid, *(one.pid for one in below)):
            if process(pid):
                os.kill(pid, signal.SIGKILL)
        root.communicate()


def asked_to_end(root: subprocess.Popen[str], grace: float) -> list[str]:
    """Return what was printed until all have ended, or the grace is over."""
    polite = PoliteEnd(signal.SIGTERM)
    ours = {root.pid, *(one.pid for one in descendants(root.pid))}
    began = time.monotonic()
    polite.begin(root.pid, began, grace)
    while time.monotonic() - began < grace:
        found = [one for pid in ours if (one := process(pid)) and one.state not in "ZX"]
        polite.step(found, time.monotonic())
        if not found:
            break
        time.sleep(0.02)
    for pid in ours:
        if process(pid):
            os.kill(pid, signal.SIGKILL)
    assert root.stdout is not None
    return root.stdout.read().splitlines()


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (IN_ORDER, ["root asked 1", "child asked"]),
        (LOST_ONCE, ["root asked 1", "root asked 2", "child asked"]),
        (PASSES_NOTHING_ON, ["root asked 1", "root asked 2", "child asked"]),
    ],
    ids=["in order", "lost once", "passes nothing on"],
)
def test_the_root_is_asked_first(handler: str, said: list[str]) -> None:
    with tree(handler) as root:
        assert asked_to_end(root, patience(4.0)) == said


def test_a_root_that_has_ended_already_leaves_the_others_to_be_asked_at_once() -> None:
    with tree(IN_ORDER) as root:
        child = descendants(root.pid)
        root.kill()
        root.wait()
        polite = PoliteEnd(signal.SIGTERM)
        polite.begin(root.pid, 0.0, 30.0)
        polite.step(child, 0.0)
        assert root.stdout is not None
        assert root.stdout.readline() == "child asked\n"
