"""Where the runbooks, images and templates are that are shipped, in a checkout and in an installed wheel.

Below 150 lines: every room needs it, and it loads nothing.
"""

from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[1]
"""The folder of this package's code."""

READERS: Final = PACKAGE.parent / "gpucore"
"""The folder of the library that reads CUDA binaries."""

_SHIPPED: Final = PACKAGE / "_data"  # exists only in an installed wheel

CHECKOUT: Final = None if _SHIPPED.is_dir() else PACKAGE.parent.parent
"""The folder of the sources, None where the package was installed."""

SHIPPED_DATA: Final = CHECKOUT or _SHIPPED
"""The folder of `runbooks`, `images` and `templates`."""
