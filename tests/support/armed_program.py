"""Stands in for a CUDA process: makes the core-dump pipe of its environment and writes a dump when it is fired.

Run as a program: `armed_program.py CORE [--children N] [--chunk-delay S] [--cut BYTES] [--rename]`. It fills in the
templates of CUDA_COREDUMP_PIPE and CUDA_COREDUMP_FILE as the driver does, keeps the pipe's reading end open, and
continues afterwards.
"""

import argparse
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import setproctitle


def fill_in(template: str) -> str:
    """Fill in %h, %p and %t."""
    now = str(int(time.time()))
    return template.replace("%h", socket.gethostname()).replace("%p", str(os.getpid())).replace("%t", now)


def main() -> None:
    """Make the pipe, wait for it to be fired, write the dump, go on."""
    parser = argparse.ArgumentParser()
    parser.add_argument("core", type=Path)
    parser.add_argument("--children", type=int, default=0)
    parser.add_argument("--chunk-delay", type=float, default=0.0)
    parser.add_argument("--cut", type=int, default=None)
    parser.add_argument("--leave-pipe", action="store_true")
    parser.add_argument("--end-when-fired", action="store_true")
    parser.add_argument("--rename-children", action="store_true")
    parser.add_argument("--rename", action="store_true")
    args = parser.parse_args()
    for _ in range(args.children):
        subprocess.Popen([sys.executable, __file__, str(args.core), *["--rename"] * args.rename_children])
    if args.rename:
        setproctitle.setproctitle("VLLM::EngineCore")  # overwrites /proc/PID/environ
    pipe = Path(fill_in(os.environ.get("CUDA_COREDUMP_PIPE") or "corepipe.cuda.%h.%p"))
    os.mkfifo(pipe)
    print("armed", flush=True)
    if args.leave_pipe:
        time.sleep(60)
    descriptor = os.open(pipe, os.O_RDWR)
    os.read(descriptor, 1 << 20)
    if args.end_when_fired:
        return
    data = args.core.read_bytes()[: args.cut]
    with Path(fill_in(os.environ.get("CUDA_COREDUMP_FILE") or "core_%t_%h_%p.nvcudmp")).open("wb") as out:
        for part in (data[: len(data) // 2], data[len(data) // 2 :]):
            out.write(part)
            out.flush()
            time.sleep(args.chunk_delay)
    time.sleep(60)


if __name__ == "__main__":
    main()
