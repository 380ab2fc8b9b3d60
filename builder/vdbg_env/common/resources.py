"""Says where the shipped runbooks, images and templates lie, in a checkout and in an installed wheel alike."""

from pathlib import Path
from typing import Literal

_PACKAGE = Path(__file__).parents[1]
_SHIPPED = _PACKAGE / "_data"  # stands only in an installed wheel
_CHECKOUT = _PACKAGE.parent.parent


def data_dir(name: Literal["runbooks", "images", "templates"]) -> Path:
    """Return the folder of shipped data called `name`."""
    return (_SHIPPED if _SHIPPED.is_dir() else _CHECKOUT) / name
