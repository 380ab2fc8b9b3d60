"""Which source files are headers of CUDA: atomics, `__ldg`, half types, cooperative groups, CCCL.

A place in one of these is not where a user's program does something. The line that called it is.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from gpucore.dwarf import Chain, SourceFrame

_NAMES: Final = (
    r"sm_\d+_(?:atomic_functions|intrinsics|rt)|device_(?:atomic|double|fp128)_functions|cuda_(?:fp(?:16|8|6|4)|bf16)"
    r"|(?:surface|texture)_indirect_functions|cuda_(?:pipeline|awbarrier)(?:_helpers|_primitives)?|cooperative_groups"
    r"|cuda_device_runtime_api|cuComplex|curand(?:_\w+)?"
)
_USUAL: Final = r"(?:device|common|math|vector)_functions"  # others may have headers of these names
_CCCL: Final = (
    r"cub/(?:agent|block|detail|device|grid|iterator|thread|util|warp)"
    r"|thrust/(?:async|detail|iterator|mr|random|system|type_traits)"
    r"|cuda/(?:std|ptx|experimental|__\w+)|libcudacxx/include/cuda|nv/detail"
)
_CUDA_S: Final = r"(?:(?:cuda|nvidia)[^/]*/(?:.*/)?|targets/[^/]+/)include"
_HEADER: Final = re.compile(
    rf"(?:^|/)(?:(?:{_NAMES}|crt/\w+)\.(?:h|hpp)|{_CUDA_S}/{_USUAL}\.(?:h|hpp)|cooperative_groups/(?:\w+/)*\w+\.(?:h|inl|cuh)"
    rf"|(?:{_CCCL})/(?:[\w.-]+/)*[\w-]+(?:\.(?:cuh|h|hpp|inl))?|(?:cub|thrust)/[\w-]+\.(?:cuh|h)"
    r"|include/(?:cccl/)?cuda/\w+)$"
)


@lru_cache(maxsize=4096)
def is_toolkit_header(file: str) -> bool:
    """Say whether a source file is a header of CUDA, by its path."""
    return _HEADER.search(re.sub(r"/(?:\./)+|//+", "/", file)) is not None


def own_frame(chain: Chain) -> SourceFrame | None:
    """Return the innermost frame of a chain that is not in a header of CUDA; the first where all are."""
    own = (frame for frame in chain if not is_toolkit_header(frame.file))
    return next(own, chain[0] if chain else None)
