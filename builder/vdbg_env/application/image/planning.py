"""Plan a build on this machine: its source trees, its GPU, and the names that its results get."""

from __future__ import annotations

from pathlib import Path

from vdbg_env.application.ports import SourceTrees
from vdbg_env.common.errors import BadInput
from vdbg_env.image.plan.plan import BuildPlan
from vdbg_env.image.plan.planner import plan
from vdbg_env.image.profile.library import ImageLibrary
from vdbg_env.image.profile.request import BuildRequest, HostGpu
from vdbg_env.image.profile.source import LocalTree, Source, parse_source
from vdbg_env.image.text import one_line


def plan_build(request: BuildRequest, library: ImageLibrary, *, gpu: HostGpu | None, trees: SourceTrees) -> BuildPlan:
    """Plan a request, local trees counted by their content; raises BadInput for what cannot be built."""
    return plan(library.spec(request.profile), request, library, gpu=gpu).with_contents(trees.digest)


def read_source(text: str, trees: SourceTrees) -> Source:
    """Read `--source`, with the commit of a local checkout; raises BadInput when there is no such source."""
    source = parse_source(text)
    if not isinstance(source, LocalTree):
        return source
    path = existing_folder(source.path, "--source")
    return LocalTree(path=path, revision=trees.revision(path), version=trees.version(path))


def existing_folder(text: str, flag: str) -> str:
    """Return the real path of a folder of this machine; raises BadInput when it does not exist."""
    path = Path(one_line(text, flag)).expanduser()
    if not path.is_dir():
        what = "a file, not a folder" if path.exists() else "not there"
        raise BadInput(f"{flag}: {path} is {what}", next_step="name a folder that exists")
    return str(path.resolve())


def existing_file(text: str, flag: str) -> str:
    """Return the real path of a file of this machine; raises BadInput when it does not exist."""
    path = Path(text).expanduser()
    if not path.is_file():
        raise BadInput(f"{flag}: {path} is {'not a file' if path.exists() else 'not there'}", next_step=f"ls -l {path}")
    return str(path.resolve())


def default_tag(plan: BuildPlan, request: BuildRequest) -> str:
    """Return the name of an image by profile and kind of debug information; a second build replaces it."""
    return f"vdbg/{plan.profile}:{request.debug}"
