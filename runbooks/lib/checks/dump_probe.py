"""Lets a thread write to an address that is not mapped: where dumps are armed, the driver writes one and ends this.

By hand:
  CUDA_ENABLE_COREDUMP_ON_EXCEPTION=1 CUDA_COREDUMP_SHOW_PROGRESS=1 CUDA_COREDUMP_FILE=/tmp/core.%h.%p \\
  CUDA_COREDUMP_GENERATION_FLAGS=skip_nonrelocated_elf_images,skip_global_memory,skip_shared_memory,skip_local_memory,\\
skip_constbank_memory python3 dump_probe.py
"""

import ctypes
import sys
from typing import Any

# The driver's own compiler turns this into machine code, so that no toolkit is needed.
PTX = b"""
.version 6.3
.target sm_75
.address_size 64
.visible .entry vdbg_probe()
{
    .reg .b64 %address;
    .reg .b32 %value;
    mov.u64 %address, 16;
    mov.u32 %value, 42;
    st.global.u32 [%address], %value;
    ret;
}
\0"""


def main() -> int:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        print(f"dump-probe: no driver library ({error})", flush=True)
        return 2
    return probe(driver)


def probe(driver: Any) -> int:
    """Start the kernel and wait for it; a driver that dumps never comes back from the wait."""
    device, context = ctypes.c_int(0), ctypes.c_void_p()
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    steps = (
        ("cuInit", lambda: driver.cuInit(0)),
        ("cuDeviceGet", lambda: driver.cuDeviceGet(ctypes.byref(device), 0)),
        ("cuCtxCreate", lambda: driver.cuCtxCreate_v2(ctypes.byref(context), 0, device)),
        ("cuModuleLoadData", lambda: driver.cuModuleLoadData(ctypes.byref(module), PTX)),
        ("cuModuleGetFunction", lambda: driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"vdbg_probe")),
    )
    for name, call in steps:
        status = call()
        if status:
            print(f"dump-probe: no kernel can be started here: {name} gives {status}", flush=True)
            return 2
    print("dump-probe: a kernel writes to address 16", flush=True)
    status = driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None) or driver.cuCtxSynchronize()
    print(f"dump-probe: the program goes on after error {status}: the driver did not end it", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
