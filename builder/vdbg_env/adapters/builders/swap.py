"""Replace libraries in an image by a build of nothing but COPY over it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from docker import errors
from pydantic import BaseModel, TypeAdapter

from vdbg_env.adapters.builders.buildkit import EngineBuilder
from vdbg_env.adapters.builders.guard_layer import add_guard
from vdbg_env.adapters.docker.archive import answer, container_archive
from vdbg_env.adapters.docker.client import Engine, engine_errors, inspect_image
from vdbg_env.adapters.docker.create import created, tool_container
from vdbg_env.application.ports.images import Installed, Swap
from vdbg_env.application.ports.unit_builds import Release
from vdbg_env.common.errors import BadInput, EngineFailed
from vdbg_env.common.resources import readers_dir
from vdbg_env.image.context import BuildContext, FileBytes
from vdbg_env.image.profile import OwnPackage

_PYTHONS: Final = ("python3", "/opt/venv/bin/python3", "/opt/conda/bin/python3", "/usr/local/bin/python3", "python")
# The package is asked for its metadata and not imported: that would need its dependencies, and a GPU's driver.
_ASK: Final = """\
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
    """`ImageSwaps` with Docker."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)

    def installed(self, image: str, project: str) -> Installed:
        """See `ImageSwaps.installed`."""
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
                ran = self.execute(image_id, [python, "-c", _ASK, project])
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
        """See `ImageSwaps.targets`."""
        argv = [base.python, "-c", _TARGETS, f"{base.folder}/{project}"]
        ran = self.execute(base.image_id, argv, lent=readers())
        # None with an older Python than ours, or a damaged library, which the next read reports.
        found = answer(_FOUND, ran.stdout) if ran.code == 0 else None
        return {path: frozenset(targets) for path, targets in (found or {}).items() if targets}

    def swap(self, image_id: str, swaps: Sequence[Swap]) -> str:
        """See `ImageSwaps.swap`."""
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
        """See `ImageSwaps.guard`."""
        return add_guard(self, image_id, python, package)

    def discard(self, image_id: str) -> None:
        """See `ImageSwaps.discard`."""
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
    return {f"{_LENT}/gpucore/{name}": (readers_dir() / name).read_bytes() for name in _READERS}
