"""How a step ended, written once and by rename, on a disk that may be full."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from vdbg_env.common.writing import open_file, write_whole
from vdbg_env.record.redactor import Redactor

RESERVED = 256 << 10  # bytes set aside at the start: the end can be written when nothing else can
ENDED = "ended.json"


class Ending:
    """The file `ended.json`: its space is reserved at the start, its content is written at the end."""

    def __init__(self, directory: str, redactor: Redactor) -> None:
        self._path = f"{directory}/{ENDED}"
        self._redactor = redactor
        self._file = open_file(f"{self._path}.tmp", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.posix_fallocate(self._file, 0, RESERVED)
        self.started = time.time()
        self._began = time.monotonic()

    def write(self, document: dict[str, Any]) -> None:
        """Write the document with its times; what does not fit into the reserved space loses its lists first."""
        document = {
            "schema": "vdbg-env/ended/v1",
            "started": self.started,
            "duration_s": round(time.monotonic() - self._began, 6),
            **document,
        }
        data = self._encoded(document)
        if len(data) > RESERVED:
            matched = {name: found[-10:] for name, found in document.get("matched", {}).items()}
            data = self._encoded({**document, "matched": matched, "workers": document.get("workers", [])[:50]})
        os.lseek(self._file, 0, os.SEEK_SET)
        write_whole(self._file, data)
        os.ftruncate(self._file, len(data))
        os.fsync(self._file)
        os.rename(f"{self._path}.tmp", self._path)  # noqa: PTH104
        os.close(self._file)

    def _encoded(self, document: dict[str, Any]) -> bytes:
        return json.dumps(self._redactor.document(document), ensure_ascii=True).encode() + b"\n"
