"""Says which cubin of a fat binary a GPU runs, and which architectures a build must be configured for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from vdbg_env.common.errors import BadInput

_TARGET: Final = re.compile(r"sm_(\d+)(\d)([af]?)$")
_ARCH: Final = re.compile(r"(\d+)\.(\d)([af]?)$")


def parse_arch(text: str) -> tuple[int, int]:
    """Read an architecture such as 9.0 or 9.0a; raises BadInput for anything else."""
    found = _ARCH.match(text)
    if not found:
        raise BadInput(f"{text!r} is not an architecture", next_step="--arch 9.0")
    return int(found[1]), int(found[2])


def cubin_for(arch: tuple[int, int], targets: Iterable[str]) -> str | None:
    """Return the target whose cubin the driver loads on a GPU, or None when it would have to compile PTX.

    A cubin runs on its own major version from its minor version on, one with `a` on its very architecture only, one
    with `f` on its family; of several the nearest is taken, of equals the specific one.
    """
    best: tuple[tuple[int, bool], str] | None = None
    for target in targets:
        found = _TARGET.match(target)
        if not found or int(found[1]) != arch[0] or int(found[2]) > arch[1]:
            continue
        if found[3] == "a" and int(found[2]) != arch[1]:
            continue
        rank = (int(found[2]), bool(found[3]))
        if best is None or rank > best[0]:
            best = rank, target
    return best[1] if best else None


def torch_arch_list(targets: Iterable[str]) -> str:
    """Return TORCH_CUDA_ARCH_LIST for a library with these targets: vLLM adds `a` and `f` itself, source by source."""
    numbers = {(int(found[1]), int(found[2])) for target in targets if (found := _TARGET.match(target))}
    return " ".join(f"{major}.{minor}" for major, minor in sorted(numbers))
