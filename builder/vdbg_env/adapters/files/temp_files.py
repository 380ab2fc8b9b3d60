"""Write bytes out as a file in the temporary folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vdbg_env.application.ports.files import Buffer


class Scratch:
    """ScratchFiles in the system's temporary folder."""

    @contextmanager
    def lend(self, data: Buffer, suffix: str) -> Iterator[Path]:
        """Write the bytes to a file whose name ends in `suffix`; it is gone when the block ends."""
        with tempfile.NamedTemporaryFile(prefix="vdbg-", suffix=suffix) as file:
            file.write(data)
            file.flush()
            yield Path(file.name)
