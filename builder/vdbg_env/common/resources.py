"""Find and read the runbooks, images and templates that are shipped, in a checkout and in an installed wheel."""

import importlib.util
from pathlib import Path
from typing import Literal

from vdbg_env.common.errors import BadInput

_PACKAGE = Path(__file__).parents[1]
_SHIPPED = _PACKAGE / "_data"  # exists only in an installed wheel
_CHECKOUT = _PACKAGE.parent.parent


def data_dir(name: Literal["runbooks", "images", "templates"]) -> Path:
    """Return the folder of shipped data called `name`."""
    return (_SHIPPED if _SHIPPED.is_dir() else _CHECKOUT) / name


def package_dir() -> Path:
    """Return the folder of this package's code."""
    return _PACKAGE


def readers_dir() -> Path:
    """Return the folder of `gpucore`, the readers of CUDA binaries, which is next to this package's."""
    return _PACKAGE.parent / "gpucore"


def re2_dir() -> Path:
    """Return the folder of the package `re2`, which a supervisor is given: it is started without any package."""
    found = importlib.util.find_spec("re2")
    assert found and found.origin, "google-re2 is one of this program's requirements"
    return Path(found.origin).parent


def checkout() -> Path | None:
    """Return the folder of the sources, None where the package was installed."""
    return None if _SHIPPED.is_dir() else _CHECKOUT


def read_tables(folder: Path) -> tuple[tuple[str, bytes], ...]:
    """Return the YAML files of a folder, each with its path, by name; raises BadInput for a pipe or folder so named."""
    found = sorted(folder.glob("*.yaml"))
    for path in found:
        if not path.is_file():  # a pipe would be waited for
            raise BadInput(f"{path} is not a file", next_step=f"ls -l {folder}, and take it away")
    return tuple((str(path), path.read_bytes()) for path in found)
