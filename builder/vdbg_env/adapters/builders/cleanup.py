"""Removes what a cancelled build left: an image that became whole just before the cancel reached the engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from docker import errors

from vdbg_env.adapters.docker.client import GONE, engine_errors
from vdbg_env.adapters.docker.images import DockerImages
from vdbg_env.image.plan import LABEL_DIGEST, BuildPlan

_PATIENCE_S = 10.0


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
                _remove(images, label, before)


def _remove(images: DockerImages, label: str, before: frozenset[str]) -> None:
    """Remove what is new, and wait a little for what a step that is still ending holds on to."""
    deadline = time.monotonic() + _PATIENCE_S
    while left := images.unnamed(label) - before:
        for image_id in left:
            images.remove(image_id)
        if time.monotonic() > deadline:
            return
        time.sleep(0.2)
