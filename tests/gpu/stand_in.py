"""Behaves as a crash sample does, without a GPU: `stand_in.py ROLE.json`, standard library only.

The role says what is printed, how it ends (`fault`, `hang`, `status`, `signal`, `clean`), and where a core lies that a
driver would have written. It honours the CUDA core-dump variables: a dump on an exception ends in SIGABRT, as with the
driver; a user-triggered one is written when something comes through the pipe, and the hang goes on.
"""

import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from pathlib import Path


def filled(template: str) -> str:
    """Fill in the specifiers of CUDA_COREDUMP_FILE and CUDA_COREDUMP_PIPE."""
    values = {"%h": socket.gethostname(), "%p": str(os.getpid()), "%t": str(int(time.time()))}
    for name, value in values.items():
        template = template.replace(name, value)
    return template


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def write_core(role: dict[str, str]) -> None:
    """Put the core where the driver would, with the driver's progress lines around it."""
    name = filled(os.environ.get("CUDA_COREDUMP_FILE", "core_%t_%h_%p.nvcudmp"))
    tell("[00:00:01.000001] coredump: Writing ELF file to " + name)
    shutil.copyfile(role["core"], name)
    tell("[00:00:01.000002] coredump: All done (took 00s)")


def fault(role: dict[str, str]) -> None:
    if os.environ.get("CUDA_ENABLE_COREDUMP_ON_EXCEPTION") == "1" and "core" in role:
        tell("[00:00:01.000000] coredump: Detected an exception of type CUDBG_EXCEPTION_WARP_ILLEGAL_ADDRESS (14)")
        write_core(role)
        os.kill(os.getpid(), signal.SIGABRT)
    tell(role["says"])
    sys.exit(1)


def hang(role: dict[str, str]) -> None:
    pipe = filled(os.environ.get("CUDA_COREDUMP_PIPE", "corepipe.cuda.%h.%p"))
    if os.environ.get("CUDA_ENABLE_USER_TRIGGERED_COREDUMP") == "1":
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        keep = os.open(pipe, os.O_WRONLY)  # held as the driver holds it: else the pipe reads as ended for ever
        select.select([reader], [], [])
        os.read(reader, 1 << 20)
        write_core(role)
        assert keep
    while True:
        time.sleep(60)


def main() -> None:
    role = json.loads(Path(sys.argv[1]).read_text())
    print("started", flush=True)
    match role["ends"]:
        case "fault":
            fault(role)
        case "hang":
            hang(role)
        case "status":
            tell(role["says"])
            sys.exit(1)
        case "signal":
            os.kill(os.getpid(), signal.SIGSEGV)


main()
