"""The standard library's `tarfile` with extraction filters (PEP 706), which Python 3.11.0 to 3.11.3 do not have."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING or sys.version_info >= (3, 12):
    import tarfile
else:  # without types; Debian 12 has Python 3.11.2
    from backports import tarfile

__all__ = ["tarfile"]
