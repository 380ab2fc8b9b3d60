"""Runs damaged shared libraries through `verify` and `locate`: none may take ten seconds of processor time.

Headers of sections and of fat binaries get values that lie, alone and several at once; each library is read in a
process of its own, within bounds of time and memory, and none may end in a traceback. `FUZZ_LIBRARIES` is how many,
3,000 if not set. It needs no fuzzing engine: what makes a reader slow is a value in a header, chosen here.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from gpucore.fatbin import Compression
from tests.builders.elf import ElfSpec, SectionSpec, build_elf
from tests.builders.fatbin import EM_X86_64, EntrySpec, container
from tests.support.cubins import cubin
from vdbg_env.cli import main

SECONDS = 10
MEMORY = 4 << 30
KERNEL = "_Z4kernIfEvPT_iS0_"
_TOOLKIT = Path(__file__).parents[2] / ".cache" / "cuda" / "bin"
_ROW = {0: 4, 4: 4, 8: 8, 16: 8, 24: 8, 32: 8, 40: 4, 44: 4, 48: 8, 56: 8}  # field of a section header: its size
_HEADER = {4: 1, 5: 1, 16: 2, 18: 2, 40: 8, 48: 4, 52: 2, 58: 2, 60: 2, 62: 2}
_FATBIN = {4: 2, 6: 2, 8: 8}  # of a container; then of an entry
_ENTRY = {16: 2, 20: 4, 24: 8, 32: 4, 48: 4, 52: 4, 56: 8, 64: 8, 72: 8}
_TYPES = (0, 1, 2, 3, 4, 5, 6, 8, 9, 11, 0x6FFFFFF6, 0x6FFFFFFE, 0x6FFFFFFF)


def libraries(folder: Path) -> list[bytes]:
    """Return sound libraries: one of each form of storage, and one of nvcc's where there is a toolkit."""
    found = []
    for how in Compression:
        code = container(*(EntrySpec(payload=cubin(name), how=how) for name in ("inline_chain_sm90", "no_lines_sm90")))
        held = [
            SectionSpec(name=".symtab", data=bytes(24 * 40), type=2, entry_size=24),
            SectionSpec(name=".gnu.hash", data=bytes(64), type=0x6FFFFFF6),
            SectionSpec(name=".dynsym", data=bytes(24 * 9), type=11, entry_size=24),
            SectionSpec(name=".nv_fatbin", data=code),
            SectionSpec(name=".data", data=b"\1" * 24 + code + cubin("shared_leaf_sm90")),
        ]
        found.append(build_elf(ElfSpec(sections=held, machine=EM_X86_64, flags=0)))
    places = os.pathsep.join([os.environ.get("PATH", ""), str(_TOOLKIT)])
    if compiler := shutil.which("nvcc", path=places):
        source, built = folder / "kernels.cu", folder / "libkernels.so"
        source.write_text("template <class T> __global__ void kern(T* a, int n, T b) { if (n) a[threadIdx.x] += b; }\n"
                          "template __global__ void kern<float>(float*, int, float);\n")  # fmt: skip
        options = ["-shared", "-Xcompiler=-fPIC", "-lineinfo", "-cudart=none", "-arch=sm_90"]
        subprocess.run([compiler, *options, "-o", built, source], check=True)
        found.append(built.read_bytes())
    return found


def damaged(sound: bytes, chance: random.Random) -> bytes:
    """Return a library some of whose headers lie."""
    data = bytearray(sound)
    table, count = int.from_bytes(data[40:48], "little"), int.from_bytes(data[60:62], "little")
    containers = [at for at in range(0, len(data) - 16, 8) if data[at : at + 4] == b"\x50\xed\x55\xba"]
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        match chance.choice("sssssshhfec"):
            case "s":
                start, fields = table + 64 * chance.randrange(count), _ROW
            case "h":
                start, fields = 0, _HEADER
            case "f":
                start, fields = chance.choice(containers), _FATBIN
            case "e":
                start, fields = chance.choice(containers), _ENTRY
            case _:  # one header many times over
                row = data[table + 64 * chance.randrange(count) :][:64]
                copies = min(chance.choice((7, 300, 0xFFFF)), 0xFEFF - count)
                data[40:48], table = len(data).to_bytes(8, "little"), len(data)
                data += data[-64 * count :] + row * copies
                count += copies
                data[60:62] = count.to_bytes(2, "little")
                continue
        field, size = chance.choice(list(fields.items()))
        if start + field + size > len(data):
            continue
        is_type = fields is _ROW and field == 4
        value = chance.choice(_TYPES) if is_type else _lie(data, chance, start + field, size)
        data[start + field : start + field + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
    return bytes(data[: chance.randrange(64, len(data))] if chance.random() < 0.03 else data)


def _lie(data: bytearray, chance: random.Random, at: int, size: int) -> int:
    now = int.from_bytes(data[at : at + size], "little")
    edges = (
        0,
        1,
        63,
        0xFFFF,
        1 << 20,
        1 << 31,
        (1 << 32) - 1,
        1 << 40,
        0x7FFFFFFFFFFF0000,
        (1 << 63) - 1,
        (1 << 64) - 1,
    )
    near = (now - 1, now + 1, now ^ 1 << chance.randrange(8 * size), len(data), len(data) - 1, len(data) + 1)
    return chance.choice((*edges, *near, chance.randrange(len(data)), chance.randrange(1 << 8 * size)))


def bounded(argv: Sequence[str]) -> tuple[float, str]:
    """Run a command of ours in a process of its own; returns its seconds of processor time and how it ended."""
    child = os.fork()
    if not child:
        _run(lambda: main(list(argv)))
    _, status, used = os.wait4(child, 0)
    took = used.ru_utime + used.ru_stime
    if os.WIFSIGNALED(status):
        over = os.WTERMSIG(status) in (signal.SIGALRM, signal.SIGXCPU)
        return took, "over time" if over else f"signal {os.WTERMSIG(status)}"
    return took, str(os.waitstatus_to_exitcode(status))


def _run(command: Callable[[], object]) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(20 * SECONDS)  # a wait that takes no processor time; the machine may have other work
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    code = 70
    out, said = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            answer = command()
        said.seek(0)
        text = said.read()
        code = 71 if "Traceback" in text or "internal error" in text else int(str(answer or 0))
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def fuzz(count: int) -> int:
    """Run so many libraries, print what came of them, and return the exit status: 1 where one was not read well."""
    chance = random.Random(os.environ.get("FUZZ_SEED", "29"))
    ends: Counter[tuple[str, str]] = Counter()
    slowest: dict[str, float] = {}
    bad = 0
    with tempfile.TemporaryDirectory(prefix="vdbg-fuzz-") as folder:
        sound = libraries(Path(folder))
        path = Path(folder, "lib.so")
        for number in range(count):
            path.write_bytes(damaged(sound[number % len(sound)], chance))
            for argv in (["verify", "--witness", "none", str(path)], ["locate", f"{KERNEL}+0x140", str(path)]):
                took, end = bounded(argv)
                ends[argv[0], end] += 1
                slowest[argv[0]] = max(slowest.get(argv[0], 0.0), took)
                if end not in ("0", "2", "3", "4"):
                    bad += 1
                    kept = Path(f"library-{number}.so")
                    shutil.copy(path, kept)
                    print(f"{argv[0]} {kept}: {end} after {took:.1f} s", file=sys.stderr)
    for (command, end), times in sorted(ends.items()):
        print(f"{command}: {times} ended with {end}")
    for command, took in slowest.items():
        print(f"{command}: the slowest took {took:.2f} s of processor time")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(fuzz(int(os.environ.get("FUZZ_LIBRARIES", "3000"))))
