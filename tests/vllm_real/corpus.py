"""The logs of the real vLLM under each fault, kept in tests/data/logs/real-vllm without names of the machine."""

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "data" / "logs" / "real-vllm"
LARGEST = 100_000


def keep(name: str, text: str, paths: Mapping[Path, str], *, port: int) -> None:
    """Write a log into the corpus where GOLDEN=rewrite asks for it."""
    if os.environ.get("GOLDEN") == "rewrite":
        redacted = redact(text, paths, port=port)
        assert len(redacted) < LARGEST, f"{name}: {len(redacted)} bytes are too many to keep"
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / f"{name}.log").write_bytes(redacted.encode())


def redact(text: str, paths: Mapping[Path, str], *, port: int) -> str:
    """Return the log with the machine's paths, host name, addresses and free ports replaced; nothing else changes."""
    for path in sorted(paths, key=lambda path: -len(str(path))):
        text = text.replace(str(path), paths[path])
    text = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "host", text)
    text = text.replace(f":{port}", ":8000").replace(f"'port': {port}", "'port': 8000")
    text = re.sub(r"(tcp://[\d.]+:)\d+", r"\g<1>29500", text)
    return re.sub(r"\b(?!127\.0\.0\.1\b|0\.0\.0\.0\b)\d{1,3}(?:\.\d{1,3}){3}(?=[:'\" /]|$)", "10.0.0.1", text)
