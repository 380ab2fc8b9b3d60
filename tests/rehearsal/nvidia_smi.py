"""Answers as nvidia-smi does where one GPU is, whose name says that it is none."""

from __future__ import annotations

import sys
import time

from tests.gpu.machine import MARK
from tests.rehearsal.cores import GPU_NAME

_VALUES = {
    "index": "0",
    "name": GPU_NAME,
    "driver_version": "580.95.05",
    "compute_cap": "9.0",
    "memory.used": "1024",
    "memory.total": "81559",
    "utilization.gpu": "100",
    "ecc.errors.uncorrected.volatile.total": "0",
    "mig.mode.current": "Disabled",
    "uuid": f"GPU-{MARK}",
}
_TABLE = f"""\
{MARK}: a stand-in for nvidia-smi
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |
|   0  {GPU_NAME}                                                                         |
+-----------------------------------------------------------------------------------------+
"""


def main() -> None:
    """Print the list, a query's row, or the table."""
    arguments = sys.argv[1:]
    query = next((word.partition("=")[2] for word in arguments if word.startswith("--query-gpu=")), None)
    if "-L" in arguments:
        print(f"GPU 0: {GPU_NAME} (UUID: GPU-{MARK})")
    elif query is None:
        print(_TABLE, end="")
    else:
        row = ", ".join(_VALUES[name] for name in query.split(","))
        print(row, flush=True)
        while any(word.startswith("--loop=") for word in arguments):
            time.sleep(2)
            print(row, flush=True)


if __name__ == "__main__":
    main()
