"""Finds out what steps will find in an image, by a first container that is started as theirs will be."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from vdbg_env.adapters.docker.client import inspect_image
from vdbg_env.adapters.execution.container.containers import StepContainers
from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env.image.settings import StepImage

LEAST_PYTHON = (3, 11)
# Plain enough for every Python 3: one that is too old can report that.
_PROBE = (
    "import json, os, shutil, sys\n"
    "tools = dict((name, shutil.which(name)) for name in sys.argv[1:])\n"
    "print(json.dumps(dict(python=sys.executable, version=sys.version_info[:3], user=[os.getuid(), os.getgid()],\n"
    "                      folder=os.getcwd(), tools=dict((n, p) for n, p in tools.items() if p))))\n"
)


def look(containers: StepContainers, tools: Sequence[str], *, name: str | None = None) -> StepImage:
    """Return what an image is and holds; from then on all containers are of exactly that image.

    `name` is what the user calls the image, where it is asked for by its id. What keeps containers from starting (no
    such image, no python3, no GPU to give) shows here, before a run begins. Raises BadInput, HostNotAble and
    EngineFailed.
    """
    asked = containers.container.settings.image
    found = inspect_image(containers.engine, asked, name=name)
    config = found.get("Config") or {}
    containers.image_id = str(found["Id"])
    told = _ask(containers, tools)
    image = StepImage(
        name=name or asked,
        image_id=containers.image_id,
        digest=next(iter(found.get("RepoDigests") or ()), None),
        env=tuple(_pair(text) for text in config.get("Env") or ()),
        labels=tuple(sorted((config.get("Labels") or {}).items())),
        python=told["python"],
        python_version=tuple(told["version"]),
        user=tuple(told["user"]),
        folder=told["folder"],
        tools=tuple(sorted(told["tools"].items())),
    )
    _check(image)
    return image


def _ask(containers: StepContainers, tools: Sequence[str]) -> dict[str, Any]:
    ran = containers.run(("python3", "-I", "-S", "-c", _PROBE, *tools))
    try:
        told: dict[str, Any] = json.loads(ran.stdout)
    except ValueError:
        raise HostNotAble(
            f"the python3 of {containers.container.settings.image} does not work: it ended with {ran.code}",
            details=tuple(ran.stderr.splitlines()[-3:]),
        ) from None
    return told


def _check(image: StepImage) -> None:
    if image.python_version < LEAST_PYTHON:
        version = ".".join(map(str, image.python_version))
        raise BadInput(
            f"{image.name} has Python {version}; the supervisor of a step needs 3.11 or newer",
            next_step="an image with a newer python3 first on its PATH; an image of vdbg-env build has one",
        )
    me = os.geteuid()
    if image.user[0] not in {0, me} and me != 0:
        raise HostNotAble(
            f"{image.name} runs as user {image.user[0]} and you are user {me}: neither may read what the other writes",
            next_step=f"--user 0, which gives you what it wrote; or --user {me}",
        )


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value
