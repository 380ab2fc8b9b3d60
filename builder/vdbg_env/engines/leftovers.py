"""Removes what a cancelled build left: an image that became whole just before the cancel reached the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from docker import errors

from vdbg_env.engines.docker_client import GONE, engine_errors
from vdbg_env.engines.docker_images import DockerImages
from vdbg_env.image.plan import LABEL_DIGEST, BuildPlan


@contextmanager
def removing_leftovers(images: DockerImages, plan: BuildPlan) -> Iterator[Callable[[], None]]:
    """Remove the unnamed images of `plan` that appear within the block, unless the function given is called."""
    label = f"{LABEL_DIGEST}={plan.digest}"
    with engine_errors(images.engine.endpoint):
        before = images.unnamed(label)
    told = False

    def finished() -> None:
        nonlocal told
        told = True

    try:
        yield finished
    finally:
        if not told:
            with suppress(errors.DockerException, *GONE):
                for image_id in images.unnamed(label) - before:
                    images.remove(image_id)
