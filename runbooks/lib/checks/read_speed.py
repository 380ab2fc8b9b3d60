"""Measures how fast a model's weights are read from where they are, and compares the memory with their size.

By hand:  python3 read_speed.py -- vllm serve ORG/MODEL --tensor-parallel-size 8
"""

import contextlib
import os
import pathlib
import random
import sys
import tempfile
import time

from model_place import asked_for, folder_of, gib, no_model, value_of, weight_files

MIB = 1 << 20
SAMPLE = 256 * MIB
BLOCK = 4 * MIB
SMALL = 4096
SMALL_READS = 64
NETWORK = (
    "nfs",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "cifs",
    "smb",
    "9p",
    "virtiofs",
    "fuse",
    "weka",
    "glusterfs",
    "afs",
)


def main() -> int:
    model, cache, words = asked_for(__doc__ or "")
    if model is None:
        return no_model("read-speed")
    folder = folder_of(model, cache)
    files = weight_files(folder) if folder else []
    if folder is None or not files:
        print(f"read-speed: no weights of {model} are here", flush=True)
        return 2
    size = sum(path.stat().st_size for path in files)
    kind, where = file_system(files[0].resolve())
    shared = "a shared file system" if kind.startswith(NETWORK) else "local"
    print(f"read-speed: {gib(size)} in {len(files)} files on {kind} ({shared}: {where})", flush=True)
    speed, small_ms = measured(max(files, key=lambda path: path.stat().st_size))
    print(f"read-speed: {speed / MIB:.0f} MiB/s in one piece, {small_ms:.2f} ms for a small read", flush=True)
    ranks = max(1, int(value_of(words, "--tensor-parallel-size") or value_of(words, "-tp") or "1"))
    once = size / speed
    print(f"read-speed: {once:.0f} s for one reader, {once * ranks:.0f} s if {ranks} rank(s) read all", flush=True)
    tell_memory(size)
    tell_other_disk()
    return 0


def tell_memory(size: int) -> None:
    """Print the memory that is left next to the size of the weights: the page cache lives there."""
    free = available_memory()
    enough = "suffices" if size <= 0.9 * free else "is short"
    print(f"read-speed: memory {enough}: {gib(size)} of weights, {gib(free)} available", flush=True)


def tell_other_disk() -> None:
    """Print the same measurement for the temporary folder, as the place a copy could go to."""
    with tempfile.NamedTemporaryFile(prefix="vdbg-read-speed.") as file:
        try:
            file.write(os.urandom(MIB) * 64)
            file.flush()
            os.fsync(file.fileno())
        except OSError as error:
            print(f"read-speed: {file.name} cannot be written: {error.strerror}", flush=True)
            return
        speed, _ = measured(pathlib.Path(file.name))
        kind, _ = file_system(pathlib.Path(file.name))
        print(f"read-speed: {tempfile.gettempdir()} is on {kind} and gives {speed / MIB:.0f} MiB/s", flush=True)


def measured(path: pathlib.Path) -> tuple[float, float]:
    """Return bytes per second of one long read, and milliseconds of a small one; the page cache is emptied first."""
    with path.open("rb", buffering=0) as file:
        length = min(SAMPLE, os.fstat(file.fileno()).st_size)
        forget(file.fileno())
        begun, read = time.monotonic(), 0
        while read < length and (chunk := file.read(BLOCK)):
            read += len(chunk)
        speed = read / max(time.monotonic() - begun, 1e-6)
        forget(file.fileno())
        places = [random.randrange(0, max(1, length - SMALL)) for _ in range(SMALL_READS)]
        begun = time.monotonic()
        for place in places:
            os.pread(file.fileno(), SMALL, place)
        return speed, (time.monotonic() - begun) * 1000 / SMALL_READS


def forget(descriptor: int) -> None:
    """Have the kernel drop what it keeps of a file in memory; pages that others use stay."""
    with contextlib.suppress(OSError):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def file_system(path: pathlib.Path) -> tuple[str, str]:
    """Return the type and the source of the file system a path is on, by the longest mount point above it."""
    best, found = -1, ("unknown", "unknown")
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        point, kind = before.split()[4].replace("\\040", " "), after.split()
        if path.is_relative_to(point) and len(point) > best:
            best, found = len(point), (kind[0], kind[1])
    return found


def available_memory() -> int:
    """Return the bytes the kernel could give out without swapping, or what the cgroup leaves of them."""
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    limit, used = (number(pathlib.Path("/sys/fs/cgroup") / name) for name in ("memory.max", "memory.current"))
    return min(free, limit - used) if limit is not None and used is not None else free


def number(path: pathlib.Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


if __name__ == "__main__":
    sys.exit(main())
