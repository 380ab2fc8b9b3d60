"""What a rank finds on its own node: the engine sees another machine."""

from __future__ import annotations

import hashlib
import os
import platform
import resource
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

_OF_A_RANK = (
    "SLURM", "PMI", "PMIX", "OMPI", "VDBG_ENV", "HOSTNAME", "RANK", "LOCAL_RANK", "TMPDIR", "CUDA_VISIBLE",
)  # fmt: skip
_LIBRARIES = ("vllm", "torch", "triton", "flashinfer", "nvidia_nccl")


def describe(argv: tuple[str, ...], environment: Mapping[str, str]) -> dict[str, str]:
    """Return driver, kernel, libraries, limits and a digest of the environment, to compare with other nodes."""
    found = {
        "kernel": platform.release(),
        "libc": "-".join(platform.libc_ver()),
        "processors": str(os.cpu_count()),
        "core limit": "/".join(map(_limit, resource.getrlimit(resource.RLIMIT_CORE))),
        "locked memory": "/".join(map(_limit, resource.getrlimit(resource.RLIMIT_MEMLOCK))),
        "environment": _digest(environment),
    }
    driver = _first_line(Path("/sys/module/nvidia/version"))
    pattern = _first_line(Path("/proc/sys/kernel/core_pattern"))
    found |= {"driver": driver} if driver else {}
    found |= {"core pattern": pattern} if pattern else {}
    return found | _libraries(argv, environment)


def raise_core_limit() -> None:
    """Let the workload write cores as large as this node allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))


def measure_clock(folder: Path) -> dict[str, float]:
    """Compare this node's clock with that of the file server, which puts the time on a file as it is written."""
    probe = folder / ".clock"
    before = time.time()
    descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, b"0")
        os.fsync(descriptor)
        after = time.time()
        served = os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
        probe.unlink()
    ahead = 0.0 if before - 0.02 <= served <= after else (before + after) / 2 - served
    # The kernel's time of a file is that of its last tick, up to 10 ms ago.
    return {"ahead_s": round(ahead, 3), "within_s": round((after - before) / 2 + 0.01, 3)}


def _libraries(argv: tuple[str, ...], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the versions that the workload's Python would import, by the names of their folders."""
    program = shutil.which(argv[0], path=environment.get("PATH")) if argv else None
    if program is None:
        return {}
    found = {}
    for folder in Path(program).parent.parent.glob("lib/python*/site-packages"):
        for name in _LIBRARIES:
            for info in sorted(folder.glob(f"{name}*-*.dist-info")):
                package, _, version = info.name.removesuffix(".dist-info").partition("-")
                found[package] = version
    return found


def _digest(environment: Mapping[str, str]) -> str:
    kept = sorted(f"{name}={value}" for name, value in environment.items() if not name.startswith(_OF_A_RANK))
    return hashlib.sha256("\0".join(kept).encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def _first_line(path: Path) -> str:
    try:
        return path.read_text().partition("\n")[0].strip()
    except OSError:
        return ""
