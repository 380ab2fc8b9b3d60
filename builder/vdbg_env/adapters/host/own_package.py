"""This program as a wheel, made of the files that run now: an image's guard is the very release that built it."""

from __future__ import annotations

import base64
import hashlib
import io
import tomllib
import zipfile
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

from vdbg_env import __version__
from vdbg_env.common.errors import VdbgError
from vdbg_env.common.resources import checkout, data_dir, package_dir, readers_dir
from vdbg_env.image.context import FileBytes
from vdbg_env.image.profile import OwnPackage

_DATA: Final = ("runbooks", "images", "templates")
_DISTRIBUTION = "vdbg-env"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first date that a zip can hold
_LEFT_OUT = ("__pycache__", ".pyc")
_ALONE = ("README.md", "pyproject.toml")  # by which the readers are installed alone


@cache
def own_package() -> OwnPackage:
    """Return this program as a wheel with what it requires; the same files give the same bytes."""
    requirements, python = _requirements()
    files = _package_files()
    info = f"vdbg_env-{__version__}.dist-info"
    heads = [f"Name: {_DISTRIBUTION}", f"Version: {__version__}", f"Requires-Python: {python}"]
    heads += [f"Requires-Dist: {requirement}" for requirement in requirements]
    files[f"{info}/METADATA"] = _lines("Metadata-Version: 2.1", *heads)
    files[f"{info}/WHEEL"] = _lines(
        "Wheel-Version: 1.0", f"Generator: vdbg-env {__version__}", "Root-Is-Purelib: true", "Tag: py3-none-any"
    )
    files[f"{info}/entry_points.txt"] = _lines("[console_scripts]", "vdbg-env = vdbg_env.__main__:main")
    record = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    files[f"{info}/RECORD"] = _lines(*record, f"{info}/RECORD,,")
    wheel = FileBytes(name=f"wheel/vdbg_env-{__version__}-py3-none-any.whl", data=_zip(files))
    return OwnPackage(wheel=wheel, requirements=requirements)


def _requirements() -> tuple[tuple[str, ...], str]:
    """Return what this program requires, without its extras, and of which Python."""
    root = checkout()
    if root is not None:
        project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
        return tuple(project["dependencies"]), project["requires-python"]
    try:
        installed = metadata.distribution(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise VdbgError(
            "the files of this program have no metadata, so what its wheel requires is not known",
            cause="they were copied, and not installed",
            next_step="pip install vdbg-env, or leave the guard out of the image: --no-guard",
        ) from None
    required = tuple(text for text in installed.requires or () if "extra ==" not in text)
    return required, str(installed.metadata["Requires-Python"])


def _package_files() -> dict[str, bytes]:
    """Return the files of the package and its data by their names in the wheel."""
    package = package_dir()
    found = {f"vdbg_env/{name}": data for name, data in _below(package).items() if not name.startswith("_data/")}
    found |= {f"gpucore/{name}": data for name, data in _below(readers_dir()).items() if name not in _ALONE}
    for folder in _DATA:
        found |= {f"vdbg_env/_data/{folder}/{name}": data for name, data in _below(data_dir(folder)).items()}
    return dict(sorted(found.items()))


def _below(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not any(part.endswith(_LEFT_OUT) for part in path.parts)
    }


def _zip(files: dict[str, bytes]) -> bytes:
    """Return a zip without compression, because two releases of zlib make different bytes of the same files."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system = 3  # Unix, whatever this machine is
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data)
    return written.getvalue()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _lines(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
