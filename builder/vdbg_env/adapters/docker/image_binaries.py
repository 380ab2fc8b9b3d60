"""Find binaries in a container image, through a container that is created, read and removed but never started."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from vdbg_env.adapters.docker.client import connect, inspect_image
from vdbg_env.adapters.docker.images import DockerImages, layers_of
from vdbg_env.crash.files import BinaryFile
from vdbg_env.image.plan import LABEL_BUILT, LABEL_LAYERS


class ImageFiles:
    """A BinarySource over the images of the container engine; nothing of an image runs.

    With `built`, of an image that `vdbg-env build` made only what that build made is looked at, unless a path is named.
    """

    def __init__(self, *, built: bool = False) -> None:
        self._built = built

    @contextmanager
    def open(self, target: str) -> Generator[Iterator[BinaryFile], None, None]:
        """Yield every candidate of `IMAGE`, or of what is at or below `/PATH` in `IMAGE:/PATH`, as `IMAGE:/path`.

        Raises BadInput when the engine has no such image, HostNotAble or EngineFailed when it does not answer.
        """
        image, colon, path = target.partition(":/")
        engine = connect()
        try:
            found = inspect_image(engine, image)
            labels = found.get("Config", {}).get("Labels") or {}
            its_own = labels.get(LABEL_LAYERS) == layers_of(found)  # else they are those of the image below
            made = _made(labels) if self._built and its_own and not colon else []
            judged = f"{image}: judged was what its build made: {', '.join(made)}"
            note = f"{judged} (vdbg-env verify {image}:/ judges all of the image)" if made else ""
            with DockerImages(engine).files(image, made or [f"/{path}"]) as files:
                known = partial(replace, labels=labels, note=note, part=None)
                yield (known(file, name=f"{image}:{file.name}") for file in files)
        finally:
            engine.client.close()


def _made(labels: Mapping[str, str]) -> list[str]:
    """Return the paths that the build of a proven image noted; none where it noted none, or what is no path."""
    try:
        paths = json.loads(labels.get(LABEL_BUILT, "[]"))
    except ValueError:
        return []
    known = isinstance(paths, list) and all(isinstance(one, str) and posixpath.isabs(one) for one in paths)
    return paths if known else []
