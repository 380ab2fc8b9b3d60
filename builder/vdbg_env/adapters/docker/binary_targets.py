"""Open a target that the user named: a file, folder or wheel, else an image."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager

from vdbg_env.adapters.files.binaries import BinaryFiles
from vdbg_env.application.ports import BinaryFile
from vdbg_env.common.errors import BadInput, EngineFailed, HostNotAble


class Targets:
    """A BinarySource over files, folders and wheels first, then over the images of the container engine."""

    @contextmanager
    def open(self, target: str) -> Generator[Iterator[BinaryFile], None, None]:
        """Yield every candidate in `target`; raises BadInput when it is neither a path nor an image."""
        with ExitStack() as stack:
            if os.path.exists(target):  # noqa: PTH110 - Path raises where a name is too long
                yield stack.enter_context(BinaryFiles().open(target))
                return
            # The Docker SDK takes longer to import than most libraries take to verify.
            from vdbg_env.adapters.docker.image_binaries import ImageFiles

            try:
                files = stack.enter_context(ImageFiles().open(target))
            except (BadInput, EngineFailed, HostNotAble) as error:
                raise BadInput(
                    f"{target} is neither a file or folder here nor an image",
                    details=(error.what,),
                    cause="a mistyped path, a path relative to another folder, or an image that was not pulled",
                    next_step=f"ls -l {target}, or docker pull {target}",
                ) from error
            yield files
