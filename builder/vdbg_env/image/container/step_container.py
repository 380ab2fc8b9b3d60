"""The containers that a run's steps run in: the image, how each is started, and what it sees.

Each attempt has one container, all alike. What differs between attempts (command, variables) goes to the supervisor in
the container and never into its configuration, which every user of the Docker Engine can read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vdbg_env.image.container.mount import Mount
from vdbg_env.image.container.run_settings import RunSettings

PACKAGES = "/run/vdbg-env"  # our package and the shipped runbooks, read-only, in every container
DATA = f"{PACKAGES}/runbooks"


@dataclass(frozen=True, kw_only=True)
class StepContainer:
    """What all containers of a run have in common.

    `settings` are those of `vdbg-env run`, with image and GPU decided; the supervisor adds its `env` to the image's.
    `user`, `memory` and `folder` are as in RunSettings.
    """

    settings: RunSettings
    mounts: tuple[Mount, ...] = ()
    user: str | None = None
    memory: int | None = None
    folder: str | None = None


@dataclass(frozen=True, kw_only=True)
class StepImage:
    """An image as the Docker Engine and a first container of it report it.

    `name` as given, `image_id` its permanent id, `digest` its name in a registry if it has one. `python` is the path
    and `python_version` the version of its python3, `user` the numeric user and group of its processes, `folder` their
    working directory, `tools` the path of each tool of the catalogue that is on its PATH.
    """

    name: str
    image_id: str
    digest: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    python: str = "python3"
    python_version: tuple[int, int, int] = (0, 0, 0)
    user: tuple[int, int] = (0, 0)
    folder: str = "/"
    tools: tuple[tuple[str, str], ...] = field(default_factory=tuple)
