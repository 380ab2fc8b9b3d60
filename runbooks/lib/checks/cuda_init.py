"""Starts the CUDA driver and nothing else: one line with its version and devices, or with the error it gives."""

import ctypes
import sys


def main() -> int:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        # 34 is what CUDA itself reports for a driver that is a stub (cuda.h, CUDA_ERROR_STUB_LIBRARY).
        print(f"cuda-init: error 34: no driver library ({error})", flush=True)
        return 1
    status = driver.cuInit(0)
    version, devices = ctypes.c_int(0), ctypes.c_int(0)
    status = status or driver.cuDriverGetVersion(ctypes.byref(version))
    status = status or driver.cuDeviceGetCount(ctypes.byref(devices))
    if status:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(status, ctypes.byref(text))
        print(f"cuda-init: error {status}: {(text.value or b'unknown').decode()}", flush=True)
        return 1
    major, minor = version.value // 1000, version.value % 1000 // 10
    print(f"cuda-init: driver for CUDA {major}.{minor}, {devices.value} device(s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
