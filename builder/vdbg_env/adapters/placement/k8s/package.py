"""Put our package where pods see it: next to the run's folder, once for each of its versions."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from vdbg_env.adapters.execution.job_builder import PACKAGES
from vdbg_env.common.resources import data_dir

RANK = Path("vdbg_env") / "adapters" / "placement" / "rank" / "__main__.py"  # below the folder that holds the package


def shared_package(runs: Path) -> Path:
    """Return the folder below `runs` with our package and the shipped runbooks; copied there when it is missing."""
    files = dict(sorted(_files()))
    digest = hashlib.sha256()
    for name, path in files.items():
        if path.suffix == ".pyc":
            continue
        digest.update(f"{name}\0".encode() + path.read_bytes())
    target = runs / f".vdbg-env-{digest.hexdigest()[:12]}"
    if not target.is_dir():
        unfinished = runs / f"{target.name}.{os.getpid()}"
        for name, path in files.items():
            copy = unfinished / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)  # with its time, by which Python takes compiled files for current
        try:
            unfinished.rename(target)
        except OSError:
            shutil.rmtree(unfinished)
            if not target.is_dir():  # another engine was faster
                raise
    return target


def _files() -> Iterator[tuple[str, Path]]:
    package, shipped = PACKAGES / "vdbg_env", data_dir("runbooks")
    for path in package.rglob("*.py*"):
        if "_data" not in path.parts and path.suffix in {".py", ".pyc"}:
            yield f"vdbg_env/{path.relative_to(package)}", path
    for path in shipped.rglob("*"):
        if path.is_file() and not {"recordings", "__pycache__"} & set(path.parts):
            yield f"runbooks/{path.relative_to(shipped)}", path
