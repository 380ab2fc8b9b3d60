"""Where a run's steps run when they run in containers: the image, how each container is started, and what it sees.

One container an attempt, all alike. What differs from one attempt to the next (its command, its variables) is told to
the supervisor in it and stands in no container's configuration, which anybody may read who may speak to the engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vdbg_env.common.errors import BadInput
from vdbg_env.image.container.run_settings import RunSettings
from vdbg_env.image.text import one_line

PACKAGES = "/run/vdbg-env"  # our package and the shipped runbooks lie here in every container, read-only
DATA = f"{PACKAGES}/runbooks"


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A file or folder of the engine's machine as a container sees it."""

    source: str
    target: str
    read_only: bool = False

    def inside(self, path: str) -> str | None:
        """Return where a container sees a path of the machine, None where this mount does not show it."""
        return _moved(path, self.source, self.target)

    def outside(self, path: str) -> str | None:
        """Return the path of the machine that a path of the container is, None where it is not of this mount."""
        return _moved(path, self.target, self.source)


@dataclass(frozen=True, kw_only=True)
class StepContainer:
    """What all containers of a run have in common.

    `settings` as for `vdbg-env run`, its image and GPU settled; its `env` is laid over the image's own by the
    supervisor. `user` as docker takes it, the image's own where None; `memory` in bytes, no limit where None; `folder`
    is where commands start, the image's own folder where None.
    """

    settings: RunSettings
    mounts: tuple[Mount, ...] = ()
    user: str | None = None
    memory: int | None = None
    folder: str | None = None


@dataclass(frozen=True, kw_only=True)
class StepImage:
    """An image as the engine and a first container of it tell of it.

    `name` as asked for, `image_id` what it is for good, `digest` its name in a registry where it has one. `python` is
    the path and `python_version` the version of its python3, `user` the numeric user and group of its processes,
    `folder` where they start, `tools` the path of each tool of the catalogue that is on its PATH.
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


def parse_mount(text: str, here: str) -> Mount:
    """Read `--mount`: `SOURCE[:TARGET][:ro]`; a source that is not absolute lies below `here`, and is its own target.

    Raises BadInput when it is not of that form.
    """
    one_line(text, "--mount")
    words = text.split(":")
    read_only = len(words) > 1 and words[-1] in {"ro", "rw"} and words.pop() == "ro"
    source = words[0] if words[0].startswith("/") else f"{here.rstrip('/')}/{words[0].removeprefix('./')}"
    source = source.removesuffix("/.").rstrip("/") or "/"
    target = words[1] if len(words) == 2 else source
    if not words[0] or len(words) > 2 or not target.startswith("/") or target == "/":
        raise BadInput(
            f"--mount {text!r} does not name a folder", next_step="write it as in --mount /models, or /src:/target:ro"
        )
    return Mount(source=source, target=target, read_only=read_only)


def start_folder(mounts: tuple[Mount, ...], here: str) -> str | None:
    """Return where commands start: the current folder where containers see it, else None for the image's own."""
    return next((folder for mount in mounts if (folder := mount.inside(here))), None)


def _moved(path: str, old: str, new: str) -> str | None:
    """Return a path at or below `old` as it is called below `new`; both may be the root."""
    above = old.rstrip("/")
    if path != old and not path.startswith(f"{above}/"):
        return None
    return (new.rstrip("/") + path[len(above) :].rstrip("/")) or "/"
