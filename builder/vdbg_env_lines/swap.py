"""Change an image that exists by a small build over it: other libraries, or this program as its guard."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from docker import errors
from pydantic import BaseModel, StringConstraints, TypeAdapter

from vdbg_env.build.buildkit import EngineBuilder
from vdbg_env.common.errors import BadInput, EngineFailed
from vdbg_env.common.resources import READERS, SHIPPED_DATA
from vdbg_env.engine.client import Engine, engine_errors, inspect_image
from vdbg_env.engine.containers import created, tool_container
from vdbg_env.engine.images import answer, container_archive
from vdbg_env.image.context import ROOT, BuildContext, FileBytes, TreeOnDisk
from vdbg_env.image.plan import quoted
from vdbg_env.image.planner import GUARD
from vdbg_env.image.profile import OwnPackage
from vdbg_env_lines.units import Release


@dataclass(frozen=True, kw_only=True)
class Installed:
    """A package in an image: its metadata, the folder of its modules, and the Python that has it.

    `image_id` is what the image's name stood for.
    """

    release: Release
    folder: str
    image_id: str
    python: str = "python3"


@dataclass(frozen=True, kw_only=True)
class Swap:
    """A library to replace: its path in the image, what is there now, and what comes in its place."""

    path: str
    stock: bytes
    new: bytes

    @property
    def kept(self) -> str:
        """The path where the original stays; no loader looks for such a name."""
        return f"{self.path}.stock"


# Add this program to an image that exists, in front of the image's own entry point, without a network in the build.
#
# What the program requires is fetched here, as wheels for the image's Python: the image need not have pip, a package
# index or certificates.


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
    templates = SHIPPED_DATA / "templates"
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


_PYTHONS: Final = ("python3", "/opt/venv/bin/python3", "/opt/conda/bin/python3", "/usr/local/bin/python3", "python")
# The package is asked for its metadata and not imported: that would need its dependencies, and a GPU's driver.
_ASK_METADATA: Final = """\
import importlib.metadata as m, json, sys
d = m.distribution(sys.argv[1])
print(json.dumps({"name": d.metadata["Name"], "version": d.version, "requires": d.requires or [],
                  "folder": str(d.locate_file(""))}))
"""

# Headers of fat binaries are read in place, by the modules that read them here; nothing is expanded.
_LENT: Final = "/tmp/vdbg-env-look"
_READERS: Final = ("__init__.py", "errors.py", "elf.py", "cubin.py", "fatbin.py")
_TARGETS: Final = f"""\
import json, mmap, pathlib, sys, types
sys.modules.update((name, types.ModuleType(name)) for name in ("lz4", "lz4.block", "zstandard"))
sys.path.insert(0, {_LENT!r})
from gpucore import elf, fatbin
found = {{}}
for path in pathlib.Path(sys.argv[1]).rglob("*.so"):
    with path.open("rb") as file:
        if elf.looks_like_elf(file.read(64)):
            library = elf.Elf(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
            entries = [e for s in library.sections_named(".nv_fatbin") for e in fatbin.entries(library.contents(s))]
            found[str(path)] = sorted({{e.target for e in entries if e.kind == fatbin.EntryKind.ELF}})
print(json.dumps(found))
"""


class _Metadata(BaseModel):
    name: str
    version: str
    requires: tuple[str, ...]
    folder: str


_METADATA: Final = TypeAdapter(_Metadata)
_FOUND: Final = TypeAdapter(dict[str, tuple[str, ...]])


class DockerSwaps(EngineBuilder):
    """Reads an image, and makes another over its layers; nothing in it is started but Python, without network."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)

    def installed(self, image: str, project: str) -> Installed:
        """Return what an image has of a project; raises BadInput when it has none."""
        self.buildx_instead()  # before the libraries are read and compiled, which takes minutes
        found_image = inspect_image(self.engine, image)
        image_id = str(found_image["Id"])
        if steps := (found_image.get("Config") or {}).get("OnBuild"):
            raise BadInput(
                f"{image} has ONBUILD steps, which every build over it runs: {steps[0]}",
                cause="it was made to be built upon, and would be changed by more than line tables",
                next_step="name the image that is built from it",
            )
        told = ""
        for python in _PYTHONS:
            try:
                ran = self.execute(image_id, [python, "-c", _ASK_METADATA, project])
            except EngineFailed as error:  # no such program in the image, mostly
                told = told or error.what
                continue
            found = answer(_METADATA, ran.stdout) if ran.code == 0 else None
            if found is not None:
                return Installed(
                    release=_release(found, image, project), folder=found.folder, image_id=image_id, python=python
                )
            # The first one is the image's own by its PATH: what it says is the reason.
            told = told or (ran.stderr.strip() or ran.stdout.strip()).rpartition("\n")[2]
        raise BadInput(
            f"{image} has no installed {project}: {told}",
            cause="it is in a Python environment that is not on PATH, or the image is another one",
            next_step=f"docker run --rm --entrypoint python3 {image} -m pip show {project}",
        )

    def targets(self, base: Installed, project: str) -> Mapping[str, frozenset[str]]:
        """Return the cubin targets of each library of a project by its path, asked of the image's own Python.

        That takes seconds, where reading the libraries takes minutes. Empty where that Python cannot say.
        """
        argv = [base.python, "-c", _TARGETS, f"{base.folder}/{project}"]
        ran = self.execute(base.image_id, argv, lent=readers())
        # None with an older Python than ours, or a damaged library, which the next read reports.
        found = answer(_FOUND, ran.stdout) if ran.code == 0 else None
        return {path: frozenset(targets) for path, targets in (found or {}).items() if targets}

    def swap(self, image_id: str, swaps: Sequence[Swap]) -> str:
        """Return the id of an untagged image with the files replaced, and the originals next to them.

        Owners, user, entry point, environment and everything else are the image's own. Raises EngineFailed.
        """
        items: list[FileBytes] = []
        lines: list[str] = []
        for number, swap in enumerate(swaps):
            owner, mode = self._owner(image_id, swap.path)
            for name, data, target in (
                (f"new-{number}", swap.new, swap.path),
                (f"stock-{number}", swap.stock, swap.kept),
            ):
                items.append(FileBytes(name=name, data=data, mode=mode))
                lines.append(f"COPY --chown={owner} {json.dumps([name, target])}")
        with self.candidate(image_id) as base:
            text = "\n".join([f"FROM {base}", *lines, ""])
            context = BuildContext(items=(*items, FileBytes(name="Dockerfile", data=text.encode())))
            return self.build_over(context, failed="the engine could not replace the libraries")

    def guard(self, image_id: str, python: str, package: OwnPackage) -> str:
        """Return the id of an untagged image with this program in front of the image's own entry point.

        `python` is the program that `installed` found. Raises BadInput where it is too old, or a package is missing.
        """
        return add_guard(self, image_id, python, package)

    def discard(self, image_id: str) -> None:
        """Remove an image that `swap` or `guard` made; one that has a name, is gone or is in use is left alone."""
        with engine_errors(self.engine.endpoint), suppress(errors.APIError):
            if not self.engine.client.inspect_image(image_id).get("RepoTags"):  # type: ignore[no-untyped-call]
                self.engine.client.remove_image(image_id)

    def _owner(self, image_id: str, path: str) -> tuple[str, int]:
        """Return owner and permissions of a file of the image."""
        with (
            created(self.engine, tool_container(image_id, ["true"], "look-inside")) as container,
            engine_errors(self.engine.endpoint),
            container_archive(self.engine.client, container, path) as (archive, _),
        ):
            member = next(iter(archive))
            return f"{member.uid}:{member.gid}", member.mode & 0o777


def _release(found: _Metadata, image: str, project: str) -> Release:
    """Return the release, whose sources are fetched here and run: of no other project than the one asked for."""
    if re.sub(r"[-_.]+", "-", found.name).lower() != project:
        raise BadInput(
            f"what {image} has as {project} calls itself {found.name!r}",
            cause="its metadata was changed, or another package took the name",
            next_step=f"docker run --rm --entrypoint python3 {image} -m pip show --files {project}",
        )
    return Release(project=project, version=found.version, requires=found.requires)


def readers() -> dict[str, bytes]:
    """Return the modules that the image's Python reads headers with, by their path in the image."""
    return {f"{_LENT}/gpucore/{name}": (READERS / name).read_bytes() for name in _READERS}
