"""What ships with the program and the user's own: profiles, knowledge, templates, bundled projects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vdbg_env.common.errors import BadInput, nearest
from vdbg_env.image.context import FileBytes
from vdbg_env.image.profile.knowledge import Knowledge
from vdbg_env.image.profile.spec import ImageSpec, ProfileFile, read_spec


@dataclass(frozen=True, kw_only=True)
class ImageLibrary:
    """Everything the planner reads; `bundled` are the files of each bundled project."""

    profiles: Mapping[str, ProfileFile]
    knowledge: Knowledge
    step_templates: Mapping[str, str]
    entrypoint: bytes
    launcher: bytes
    object_cache: bytes = b""
    bundled: Mapping[str, tuple[FileBytes, ...]] = field(default_factory=dict)

    def spec(self, name: str) -> ImageSpec:
        """Return the profile called `name`; raises BadInput when there is none, BadDocument when it is wrong."""
        found = self.profile(name)
        spec = read_spec(found, self.profiles)
        if spec.name != name:
            raise BadInput(
                f"{found.file} has the name {spec.name!r} in it",
                next_step=f"change that to {name!r}, or rename the file to {spec.name}.yaml",
            )
        return spec

    def profile(self, name: str) -> ProfileFile:
        """Return a profile's file; raises BadInput when there is none of that name."""
        found = self.profiles.get(name)
        if found is None:
            near = nearest(name, self.profiles)
            cause = f"did you mean {near!r}?" if near else "a profile in a file is given by its path, as in ./my.yaml"
            raise BadInput(f"no profile is called {name!r}", cause=cause, next_step="vdbg-env images list")
        return found
