"""What ships with the program and what a user keeps beside it: profiles, knowledge, templates, bundled projects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vdbg_env.common.errors import BadInput, nearest
from vdbg_env.image.context import FileBytes
from vdbg_env.image.profile.knowledge import Knowledge
from vdbg_env.image.profile.spec import ImageSpec, read_spec


@dataclass(frozen=True, kw_only=True)
class ProfileFile:
    """A profile as found: its file as shown to the user, its text, and whether it ships with the program."""

    file: str
    text: bytes
    shipped: bool


@dataclass(frozen=True, kw_only=True)
class ImageLibrary:
    """Everything the planner reads; `bundled` are the files of each bundled project."""

    profiles: Mapping[str, ProfileFile]
    knowledge: Knowledge
    step_templates: Mapping[str, str]
    entrypoint: bytes
    bundled: Mapping[str, tuple[FileBytes, ...]] = field(default_factory=dict)

    def spec(self, name: str) -> ImageSpec:
        """Return the profile called `name`; raises BadInput when there is none, BadDocument when it is wrong."""
        found = self.profiles.get(name)
        if found is None:
            near = nearest(name, self.profiles)
            raise BadInput(
                f"no profile is called {name!r}",
                cause=f"did you mean {near!r}?"
                if near
                else "a profile in a file is given by its path, as in ./my.yaml",
                next_step="vdbg-env images list",
            )
        spec = read_spec(found.text, found.file, {n: p.text for n, p in self.profiles.items()}, (name,))
        if spec.name != name:
            raise BadInput(
                f"{found.file} calls itself {spec.name!r}", next_step=f"name it {name!r}, or its file {spec.name}.yaml"
            )
        return spec
