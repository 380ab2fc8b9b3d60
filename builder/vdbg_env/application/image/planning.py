"""Plan a build on this machine: its source trees, its GPU, and the names that its results get."""

from __future__ import annotations

from vdbg_env.application.ports.images import SourceTrees
from vdbg_env.image.knowledge import ImageLibrary
from vdbg_env.image.plan import BuildPlan
from vdbg_env.image.planner import plan
from vdbg_env.image.profile import BuildRequest, HostGpu, LocalTree, Source, parse_source


def plan_build(request: BuildRequest, library: ImageLibrary, *, gpu: HostGpu | None, trees: SourceTrees) -> BuildPlan:
    """Plan a request, local trees counted by their content; raises BadInput for what cannot be built."""
    return plan(library.spec(request.profile), request, library, gpu=gpu).with_contents(trees.digest)


def read_source(text: str, trees: SourceTrees) -> Source:
    """Read `--source`, with the commit of a local checkout; raises BadInput when there is no such source."""
    source = parse_source(text)
    if not isinstance(source, LocalTree):
        return source
    path = trees.existing(source.path, "--source")
    return LocalTree(path=path, revision=trees.revision(path), version=trees.version(path))


def default_tag(plan: BuildPlan, request: BuildRequest) -> str:
    """Return the name of an image by profile and kind of debug information; a second build replaces it."""
    return f"vdbg/{plan.profile}:{request.debug}"
