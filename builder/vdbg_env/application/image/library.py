"""Read the shipped profiles, knowledge and templates, and the user's own, into one value for the planner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vdbg_env.common import yaml_source
from vdbg_env.common.errors import BadInput
from vdbg_env.common.resources import data_dir
from vdbg_env.image.context import FileBytes
from vdbg_env.image.knowledge import ImageLibrary, read_knowledge
from vdbg_env.image.profile import ProfileFile


def read_image_library(user_folder: Path | None = None, extra: ProfileFile | None = None) -> ImageLibrary:
    """Read what ships with the program and the user's own `user_folder`, and add the one profile `extra`.

    The user's profiles override shipped ones of the same name; so do rows in the `knowledge/` folder there. Raises
    BadInput when a file cannot be read.
    """
    shipped = data_dir("images")
    profiles = dict(_profiles(shipped, shipped_with_us=True))
    knowledge = sorted((shipped / "knowledge").glob("*.yaml"))
    if user_folder is not None and user_folder.is_dir():
        profiles.update(_profiles(user_folder, shipped_with_us=False))
        knowledge += sorted((user_folder / "knowledge").glob("*.yaml"))
    if extra is not None:
        profiles[profile_name(extra)] = extra
    templates = data_dir("templates")
    return ImageLibrary(
        profiles=profiles,
        knowledge=read_knowledge((str(path), _read(path)) for path in knowledge),
        step_templates={path.name: _read(path).decode() for path in sorted((templates / "steps").glob("*.j2"))},
        entrypoint=_read(templates / "entrypoint.sh"),
        launcher=_read(templates / "vdbg-env.sh"),
        object_cache=_read(templates / "object-cache.sh"),
        bundled={folder.name: tuple(_bundled(folder)) for folder in sorted(shipped.iterdir()) if _is_project(folder)},
    )


def open_profile(profile: str, user_folder: Path) -> tuple[str, ImageLibrary]:
    """Return a profile's name and the library that contains it; `profile` is a name, or the path of a YAML file."""
    if "/" not in profile and not profile.endswith((".yaml", ".yml")):
        return profile, read_image_library(user_folder)
    path = Path(profile).expanduser()
    file = ProfileFile(file=str(path), text=_read(path, at_most=yaml_source.MAX_BYTES + 1))
    return profile_name(file), read_image_library(user_folder, file)


def profile_name(file: ProfileFile) -> str:
    """Return the name in a profile, or that of its file when there is none in it; raises BadDocument."""
    value = file.source.value
    name = value.get("name") if isinstance(value, dict) else None
    return name if isinstance(name, str) else Path(file.file).stem


def _profiles(folder: Path, *, shipped_with_us: bool) -> Iterator[tuple[str, ProfileFile]]:
    for path in sorted(folder.glob("*.yaml")):
        yield path.stem, ProfileFile(file=str(path), text=_read(path), shipped=shipped_with_us)


def _is_project(folder: Path) -> bool:
    return (folder / "CMakeLists.txt").is_file()


def _bundled(folder: Path) -> Iterator[FileBytes]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield FileBytes(name=path.relative_to(folder).as_posix(), data=_read(path))


def _read(path: Path, *, at_most: int = -1) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(at_most)  # the user may name a file without end, such as a device
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read: {error.strerror}", next_step="check the path and its permissions"
        ) from None
