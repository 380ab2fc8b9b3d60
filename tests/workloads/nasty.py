"""A child that does all it can to outlive its end: it ignores every polite signal, leaves its session, and forks twice.

`nasty.py MARK [main]`: with `main` its first process stays too; otherwise it exits at once and leaves its orphans.
"""

import os
import signal
import sys
import time


def stay() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(60)


def orphan() -> None:
    """Leave a grandchild in a session of its own whose parent is gone."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            stay()
        os._exit(0)


for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
for _ in range(3):
    orphan()
if os.fork() == 0:
    stay()
print("ready", flush=True)
if "main" in sys.argv:
    stay()
