"""The Triton kernel of torch_crash.py, apart because its decorator needs Triton at import."""

import triton
import triton.language as tl


@triton.jit
def put(pointer, far):
    tl.store(pointer + tl.arange(0, 64) + far, 1.0)  # PLANTED triton
