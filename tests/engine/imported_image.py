"""A small image without any program, made of files alone."""

import contextlib
import io
import tarfile
import uuid
from collections.abc import Iterator, Mapping

from vdbg_env.engine.client import Engine


@contextlib.contextmanager
def imported(engine: Engine, files: Mapping[str, bytes]) -> Iterator[str]:
    """Import a file system as an image under a name of no other test, and remove it again."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    repository, tag = "vdbg-test/imported", uuid.uuid4().hex
    engine.client.import_image_from_data(packed.getvalue(), repository=repository, tag=tag)
    try:
        yield f"{repository}:{tag}"
    finally:
        engine.client.remove_image(f"{repository}:{tag}")
