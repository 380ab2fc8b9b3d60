"""Where the runbooks, images and templates are that are shipped, in a checkout and in an installed wheel.

Below 150 lines: every room needs it, and it loads nothing.
"""

import importlib.util
from pathlib import Path
from typing import Final

from vdbg_env.common.errors import BadInput

PACKAGE: Final = Path(__file__).parents[1]
"""The folder of this package's code."""

READERS: Final = PACKAGE.parent / "gpucore"
"""The folder of the library that reads CUDA binaries."""

_SHIPPED: Final = PACKAGE / "_data"  # exists only in an installed wheel

CHECKOUT: Final = None if _SHIPPED.is_dir() else PACKAGE.parent.parent
"""The folder of the sources, None where the package was installed."""

SHIPPED_DATA: Final = CHECKOUT or _SHIPPED
"""The folder of `runbooks`, `images` and `templates`."""


def re2_dir() -> Path:
    """Return the folder of the package `re2`, which a supervisor is given: it is started without any package."""
    found = importlib.util.find_spec("re2")
    assert found and found.origin, "google-re2 is one of this program's requirements"
    return Path(found.origin).parent


def read_tables(folder: Path) -> tuple[tuple[str, bytes], ...]:
    """Return the YAML files of a folder, each with its path, by name; raises BadInput for a pipe or folder so named."""
    found = sorted(folder.glob("*.yaml"))
    for path in found:
        if not path.is_file():  # a pipe would be waited for
            raise BadInput(f"{path} is not a file", next_step=f"ls -l {folder}, and take it away")
    return tuple((str(path), path.read_bytes()) for path in found)
