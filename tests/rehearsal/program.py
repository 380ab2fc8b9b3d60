"""Behaves as a crash sample does on a GPU, without one: `python -m tests.rehearsal.program SAMPLE BINARY`.

BINARY is what nvcc really made of the sample; the core is written around the machine code in it. The driver's variables
are honoured: a dump on an exception ends in SIGABRT, a user-triggered one is written when something comes through the
pipe, and the hang goes on.
"""

from __future__ import annotations

import gzip
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NoReturn

from gpucore.code_map import CodeMap
from gpucore.core_layout import GpuException
from gpucore.fatbin import EntryKind, find_device_code
from tests.gpu.machine import MARK
from tests.gpu.samples import Sample, samples
from tests.rehearsal.cores import BITS, core_of, exception_code, planted

_BEFORE = {  # what a sample prints before its kernel fails or hangs
    "spin-grid": "waiting for the exchange",
    "spin-lane": "waiting for the reduction",
    "hang-in-templates": "decoding",
    "device-assert": "{source}:{line}: void check_tokens(const int *, int): block: [0,0,0], thread: [7,0,0] "
    "Assertion `tokens[threadIdx.x] < vocabulary` failed.",
    "torch-assert": "/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:111: operator(): block: [0,0,0], "
    'thread: [0,0,0] Assertion `-sizes[i] <= index && index < sizes[i] && "index out of bounds"` failed.',
}
_ARMED, _TRIGGERED = "CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "CUDA_ENABLE_USER_TRIGGERED_COREDUMP"


def main() -> None:
    """Be the sample."""
    sample = next(s for s in samples() if s.name == sys.argv[1])
    tell(f"{MARK}: a stand-in for {sample.name}, no GPU runs it")
    if sample.name in _BEFORE:
        tell(_BEFORE[sample.name].format(source=sample.source, line=sample.planted))
    binary = Path(sys.argv[2])
    if sample.name == "two-ranks":
        both_ranks(sample, binary)
    match sample.ends:
        case "fault":
            fault(sample, binary)
        case "hang":
            hang(sample, binary)
        case "status":
            tell(sample.says or "")
            sys.exit(1)
        case "signal":
            os.kill(os.getpid(), signal.SIGSEGV)


def tell(text: str) -> None:
    """Print a line as the programs and the driver do."""
    print(text, file=sys.stderr, flush=True)


def both_ranks(sample: Sample, binary: Path) -> NoReturn:
    """Start two ranks and wait for both, as the sample does: the second faults, the first waits for ever."""
    for rank in range(2):
        if os.fork() == 0:
            tell(f"(Worker_TP{rank} pid={os.getpid()}) started")
            if rank == 1:
                fault(sample, binary)
            while True:
                time.sleep(60)
    os.wait()
    os.wait()
    sys.exit(1)


def fault(sample: Sample, binary: Path) -> NoReturn:
    """Fail as the driver makes a program fail: by a core and abort() where dumps are armed, else by an error."""
    if os.environ.get(_ARMED) == "1" and sample.exceptions:
        driver = Driver()
        driver.detected(sample)
        driver.dump(sample, binary)
        os.kill(os.getpid(), signal.SIGABRT)
    tell(sample.says or "")
    sys.exit(1)


def hang(sample: Sample, binary: Path) -> NoReturn:
    """Never end; write a core each time something comes through the pipe."""
    if os.environ.get(_TRIGGERED) == "1":
        pipe = filled(os.environ.get("CUDA_COREDUMP_PIPE", "corepipe.cuda.%h.%p"))
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        os.open(pipe, os.O_WRONLY)  # held as the driver holds it: else the pipe reads as ended for ever
        while select.select([reader], [], []):
            os.read(reader, 1 << 20)
            Driver().dump(sample, binary)
    while True:
        time.sleep(60)


class Driver:
    """What the driver prints and writes when it dumps."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        given = filter(None, os.environ.get("CUDA_COREDUMP_GENERATION_FLAGS", "").split(","))
        self.flags = frozenset(given)

    def say(self, text: str) -> None:
        """Print a line with the time since the start, where progress is asked for."""
        if os.environ.get("CUDA_COREDUMP_SHOW_PROGRESS") == "1":
            seconds = time.monotonic() - self._began
            tell(f"[00:00:{seconds:09.6f}] coredump: {text}")

    def detected(self, sample: Sample) -> None:
        """Say which exception was met."""
        exception = GpuException(code=exception_code(sample))
        self.say(f"Detected an exception of type {exception.identifier} ({exception.code})")
        self.say("  - Device: 0")
        self.say("  - SM: 0")
        exited = sample.name == "exited-warp"
        self.say("  - Warp: " + ("exception was detected after the warp has exited" if exited else "0"))

    def dump(self, sample: Sample, binary: Path) -> None:
        """Write the core where and how the settings say."""
        for flag in sorted(self.flags - set(BITS)):
            tell(f"WARNING: Ignoring unknown coredump flag '{flag}'")
            tell(f"Valid flags are: {', '.join(BITS)}")
        if "log_only" in self.flags:
            return
        code = machine_code(binary)
        at = planted(code, sample, by_line=CodeMap(code).lines is not None)
        data = core_of(sample, code, at, self.flags, now=int(time.time()))
        name = filled(os.environ.get("CUDA_COREDUMP_FILE", "core_%t_%h_%p.nvcudmp"))
        if "gzip_compress" in self.flags:
            name, data = f"{name}.gz", gzip.compress(data)
        self.say("Device 1/1 has finished state collection")
        self.say("Calculating ELF file layout")
        self.say("ELF file layout calculated")
        self.say(f"Writing ELF file to {name}")
        Path(name).write_bytes(data)
        self.say("Writing out device table")
        self.say("Finalizing")
        self.say("All done (took 00s)")


def filled(template: str) -> str:
    """Fill in the specifiers of CUDA_COREDUMP_FILE and CUDA_COREDUMP_PIPE."""
    values = {"%h": socket.gethostname(), "%p": str(os.getpid()), "%t": str(int(time.time()))}
    for name, value in values.items():
        template = template.replace(name, value)
    return template


def machine_code(binary: Path) -> bytes:
    """Return the cubin in a program that nvcc made, or the cubin itself."""
    found = [device.entry for device in find_device_code(binary.read_bytes())]
    cubins = [bytes(entry.payload()) for entry in found if entry.kind == EntryKind.ELF]
    return next(cubin for cubin in cubins if CodeMap(cubin).kernels)


if __name__ == "__main__":
    main()
