"""Ask NCCL's RAS service for the state of all ranks: a separate program, standard library only.

Written from NCCL's documentation and source (2.32: `troubleshooting/ras`, `src/ras/client_support.cc`) against a
stand-in; a real one was never met. Lines are commands; the answer to STATUS ends with the connection.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

MARK = "nccl-ras: "  # before the answer, on one line
_PORT = 28028
_ASK_S, _WAIT_S = 5, 15.0  # what RAS itself may take for a leg, and how long its answer is waited for
_MOST = 8 << 20  # bytes of an answer


def main() -> int:
    """Print the answer on one line behind MARK; 1 where there is none."""
    if os.environ.get("NCCL_RAS_ENABLE") == "0":
        print("NCCL_RAS_ENABLE=0: the service is off")
        return 1
    host, port = address(os.environ.get("NCCL_RAS_ADDR", ""))
    try:
        text = ask(host, port)
    except OSError as error:
        print(f"no RAS service at {host}:{port}: {error}")
        return 1
    at = text.find("{")
    try:
        print(MARK + json.dumps(json.loads(text[at:])))
    except (ValueError, RecursionError):
        print(*(f"(text) {line}" for line in text.splitlines()[:200]), sep="\n")  # of an NCCL before JSON
    return 0


def address(text: str) -> tuple[str, int]:
    """Return host and port of NCCL_RAS_ADDR (`HOST:PORT`, `[V6]:PORT`); what is missing is NCCL's default."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal():
        return text or "localhost", _PORT
    return host.strip("[]") or "localhost", int(port)


def ask(host: str, port: int) -> str:
    """Return what the service says of the job; raises OSError where nothing answers."""
    until = time.monotonic() + _WAIT_S
    received = b""
    with socket.create_connection((host, port), timeout=_ASK_S) as connection:
        connection.sendall(b"CLIENT PROTOCOL 2\nTIMEOUT %d\nSET FORMAT json\nSTATUS\n" % _ASK_S)
        while (left := until - time.monotonic()) > 0 and len(received) < _MOST:
            connection.settimeout(left)
            try:
                data = connection.recv(1 << 16)
            except TimeoutError:
                break
            if not data:
                break
            received += data
    return received.decode("utf-8", "replace")


if __name__ == "__main__":
    sys.exit(main())
