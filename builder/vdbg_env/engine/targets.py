"""Open what the user named: a file, folder or wheel, else an image; a folder of dumps, else a volume.

Below 150 lines: no client of an engine is loaded before one is asked.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vdbg_env.common.errors import BAD_INPUT, BadInput, EngineFailed, HostNotAble, quoted
from vdbg_env.crash.files import BinaryFile, BinaryFiles

if TYPE_CHECKING:
    from vdbg_env.crash.dumps import DumpStore
    from vdbg_env.image.settings import DumpVolume


@dataclass(frozen=True, kw_only=True)
class Targets:
    """A BinarySource over files, folders and wheels first, then over the images of the container engine.

    With `built`, of an image that this program built only what that build made is looked at.
    """

    built: bool = False

    @contextmanager
    def open(self, target: str) -> Generator[Iterator[BinaryFile], None, None]:
        """Yield every candidate in `target`; raises BadInput when it is neither a path nor an image."""
        with ExitStack() as stack:
            if os.path.exists(target):  # noqa: PTH110 - Path raises where a name is too long
                yield stack.enter_context(BinaryFiles().open(target))
                return
            if target == "-":
                raise BadInput(
                    "binaries are read from files, not from the standard input",
                    next_step="cat > FILE, then name FILE in place of -",
                )
            if not _may_be_an_image(target):
                folder = os.path.dirname(target.rstrip("/"))  # noqa: PTH120
                raise BadInput(
                    f"{target} is not there",
                    cause="a mistyped path, or a path relative to another folder",
                    next_step=f"ls -l {quoted(folder if os.path.isdir(folder) else target)}",  # noqa: PTH112
                )
            # The Docker SDK takes longer to import than most libraries take to verify.
            from vdbg_env.engine.images import ImageFiles

            try:
                files = stack.enter_context(ImageFiles(built=self.built).open(target))
            except (*BAD_INPUT, EngineFailed, HostNotAble) as error:
                raise BadInput(
                    f"{target} is neither a file or folder here nor an image",
                    details=(error.what,),
                    cause="a mistyped path, a path relative to another folder, or an image that was not pulled",
                    next_step=f"ls -l {quoted(target)}, or docker pull {quoted(target.partition(':/')[0])}",
                ) from error
            yield files


def _may_be_an_image(target: str) -> bool:
    """Return whether an engine could know it.

    It knows nothing that begins or ends as a path, but for `IMAGE:/`. A name below a folder that is here needs a tag or
    a digest.
    """
    folder, _, name = target.rpartition("/")
    if target.startswith(("/", "./", "../", "~")) or (target.endswith("/") and not target.endswith(":/")):
        return False
    return ":" in name or "@" in name or ":/" in target or not (folder and os.path.isdir(folder))  # noqa: PTH112


def existing_dump_store(place: DumpVolume) -> DumpStore | None:
    """Return where dumps go, or None for a volume that nothing was run with yet."""
    if place.kind == "bind":
        from vdbg_env.engine.dump_folder import FolderDumps

        return FolderDumps(Path(place.source))
    from vdbg_env.engine.client import connect  # the client of an engine is not loaded for a folder
    from vdbg_env.engine.containers import DockerContainers
    from vdbg_env.engine.dump_volume import find_dumps

    engine = connect()
    return find_dumps(engine, DockerContainers(engine), place.source)


def dump_store(place: DumpVolume) -> DumpStore:
    """Return the folder or the volume that dumps go to; raises BadInput without such a volume."""
    found = existing_dump_store(place)
    if found is None:
        raise BadInput(
            f"the engine has no volume {place.source!r}",
            cause="nothing was run with it yet: the first vdbg-env run makes it",
            next_step="vdbg-env run -- COMMAND, or name a folder: --dumps /PATH",
        )
    return found
