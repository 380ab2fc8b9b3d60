"""Folders of the machine that a container sees."""

from __future__ import annotations

from dataclasses import dataclass

from vdbg_env.common.errors import BadInput
from vdbg_env.image.text import one_line


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A file or folder of the Docker Engine's machine, mounted into a container."""

    source: str
    target: str
    read_only: bool = False

    def inside(self, path: str) -> str | None:
        """Return the path in the container of a path of the machine; None outside this mount."""
        return _moved(path, self.source, self.target)

    def outside(self, path: str) -> str | None:
        """Return the path on the machine of a path in the container; None outside this mount."""
        return _moved(path, self.target, self.source)


def parse_mount(text: str, here: str) -> Mount:
    """Read `--mount SOURCE[:TARGET][:ro]`; a relative source is below `here`, and the target defaults to the source.

    Raises BadInput for any other form.
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
    """Return the working directory: the current folder if it is mounted, else None for the image's default."""
    return next((folder for mount in mounts if (folder := mount.inside(here))), None)


def _moved(path: str, old: str, new: str) -> str | None:
    """Return a path at or below `old` with `new` in place of `old`; both may be the root."""
    above = old.rstrip("/")
    if path != old and not path.startswith(f"{above}/"):
        return None
    return (new.rstrip("/") + path[len(above) :].rstrip("/")) or "/"
