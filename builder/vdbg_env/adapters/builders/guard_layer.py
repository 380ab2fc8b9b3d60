"""Add this program to an image that exists, in front of the image's own entry point, without a network in the build.

What the program requires is fetched here, as wheels for the image's Python: the image need not have pip, a package
index or certificates.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import StringConstraints, TypeAdapter

from vdbg_env.adapters.builders.buildkit import EngineBuilder
from vdbg_env.adapters.docker.archive import answer
from vdbg_env.adapters.docker.client import inspect_image
from vdbg_env.common.errors import BadInput, EngineFailed
from vdbg_env.common.resources import data_dir
from vdbg_env.image.context import BuildContext, FileBytes, TreeOnDisk
from vdbg_env.image.dockerfile import quoted
from vdbg_env.image.plan import ROOT
from vdbg_env.image.planner import GUARD
from vdbg_env.image.profile import OwnPackage

_ASK: Final = "import json, platform, sys; print(json.dumps([*sys.version_info[:2], platform.machine()]))"
_ABOUT: Final = TypeAdapter(tuple[int, int, Annotated[str, StringConstraints(pattern=r"^\w+$")]])
_OLDEST: Final = (3, 11)
_LIBC: Final = ("2_17", "2_24", "2_26", "2_27", "2_28")  # by which PyPI's wheels are named, up to Debian 10's
_FETCH_S: Final = 900.0  # some 30 MB, by pip, which retries by itself
_INSTALL: Final = f"""\
set -eu; {{python}} -m venv --without-pip {ROOT}/tool; \\
    packages="$({ROOT}/tool/bin/python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"; \\
    for wheel in {ROOT}/wheel/*.whl; do {{python}} -m zipfile -e "$wheel" "$packages"; done; \\
    {ROOT}/tool/bin/python3 -m compileall -q "$packages"; \\
    {ROOT}/vdbg-env --version"""


def add_guard(images: EngineBuilder, image_id: str, python: str, package: OwnPackage) -> str:
    """Return the id of an untagged image with the program and its entry point; all else is the image's own.

    Raises BadInput where the image's Python is too old or its packages cannot be fetched, EngineFailed for the rest.
    """
    with tempfile.TemporaryDirectory(prefix="vdbg-env-guard-") as folder:
        _fetch(_about(images, image_id, python), package, Path(folder))
        return _build(images, image_id, python, package, Path(folder))


def _about(images: EngineBuilder, image_id: str, python: str) -> tuple[int, int, str]:
    ran = images.execute(image_id, [python, "-c", _ASK])
    found = answer(_ABOUT, ran.stdout) if ran.code == 0 else None
    if found is None:
        raise EngineFailed(
            f"{python} of the image ended with status {ran.code}, and its version is not known",
            cause=((ran.stderr.strip() or ran.stdout.strip()).splitlines() or ["it printed nothing"])[-1],
            next_step="leave out --guard, or repair the image's Python",
        )
    major, minor, machine = found
    if (major, minor) < _OLDEST:
        raise BadInput(
            f"the image has Python {major}.{minor}, and the guard needs {_OLDEST[0]}.{_OLDEST[1]} or later",
            next_step="leave out --guard; vdbg-env guard on the machine guards `docker run` itself",
        )
    return major, minor, machine


def _fetch(about: tuple[int, int, str], package: OwnPackage, folder: Path) -> None:
    """Fetch what the program requires, by this machine's pip and its configuration."""
    major, minor, machine = about
    (folder / Path(package.wheel.name).name).write_bytes(package.wheel.data)
    platforms = (word for libc in _LIBC for word in ("--platform", f"manylinux_{libc}_{machine}"))
    argv = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--dest", str(folder),
        "--only-binary", ":all:", "--implementation", "cp", "--python-version", f"{major}.{minor}", *platforms,
        "--platform", f"manylinux2014_{machine}", *package.requirements,
    ]  # fmt: skip
    try:
        ran = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_FETCH_S
        )
    except subprocess.TimeoutExpired as error:
        raise BadInput(
            f"what vdbg-env requires was not fetched within {_FETCH_S:.0f} s",
            cause="the package index does not respond, or a proxy holds the connection",
            next_step="PIP_INDEX_URL names an index that responds; or leave out --guard",
        ) from error
    if ran.returncode != 0:
        raise BadInput(
            f"what vdbg-env requires cannot be fetched for Python {major}.{minor}",
            cause=(ran.stderr.strip().splitlines() or ["pip printed nothing"])[-1],
            next_step="PIP_INDEX_URL names an index that has it; or leave out --guard",
        )


def _build(images: EngineBuilder, image_id: str, python: str, package: OwnPackage, wheels: Path) -> str:
    templates = data_dir("templates")
    config = inspect_image(images.engine, image_id)["Config"]
    with images.candidate(image_id) as base:
        items = (
            TreeOnDisk(name="wheel", path=str(wheels)),
            FileBytes(name="vdbg-env", data=(templates / "vdbg-env.sh").read_bytes(), mode=0o755),
            FileBytes(name="entrypoint.sh", data=(templates / "entrypoint.sh").read_bytes(), mode=0o755),
            FileBytes(name="Dockerfile", data=_dockerfile(base, python, config).encode()),
        )
        context = BuildContext(items=items)
        return images.build_over(context, offline=True, failed="the guard could not be added")


def _dockerfile(base: str, python: str, config: Mapping[str, Any]) -> str:
    """Return what puts the guard in front of the image's own entry point; to set that resets the command."""
    entry = [f"{ROOT}/entrypoint.sh", *GUARD, *(config.get("Entrypoint") or ())]
    lines = [
        f"FROM {base}",
        "USER 0",
        *(f"COPY {json.dumps([name, f'{ROOT}/{name}'])}" for name in ("wheel", "vdbg-env", "entrypoint.sh")),
        f"RUN {_INSTALL.format(python=python)}",
        f"USER {quoted(config.get('User') or '0', 'the user of the image')}",
        f"ENTRYPOINT {json.dumps(entry)}",
        *([f"CMD {json.dumps(_words(config['Cmd']))}"] if config.get("Cmd") else []),
    ]
    return "\n".join([*lines, ""])


def _words(command: Sequence[str] | str) -> list[str]:
    return [command] if isinstance(command, str) else list(command)
