"""Writing a line pack where something else than a file is."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

from vdbg_env.crash.line_packs import write_whole


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, b"lines")
    reader.join()
    assert read == [b"lines"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
