"""Carry a build into an air-gapped site: fetch here, put image and plan into one file, build there without network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from vdbg_env import __version__
from vdbg_env.application.image.build import BuildResult, BuildSettings, Tell, build_image, fetch_first
from vdbg_env.application.ports.images import BundleFiles, ImageBuilder
from vdbg_env.common.errors import BadInput
from vdbg_env.image.context import BuildContext
from vdbg_env.image.plan import BuildPlan, Manifest, describe_bundle


@dataclass(frozen=True, kw_only=True)
class BundleResult:
    """What was written: the file and its size, the image in it, and the digest of the plan for the site."""

    path: Path
    size: int
    image: str
    plan_digest: str


def write_bundle(
    plan: BuildPlan, settings: BuildSettings, path: Path, *, builder: ImageBuilder, files: BundleFiles, tell: Tell
) -> BundleResult:
    """Fetch everything, and write the image with all of it and the rest of the plan into one file."""
    rest = fetch_first(plan, settings, builder, tell)
    manifest = describe_bundle(rest, layers=builder.layers(rest.base), tag=settings.tags[0], made_by=__version__)
    context = BuildContext(items=rest.context)
    size = files.write(path, lambda tar: builder.save(rest.base, tar), manifest.text(), context)
    return BundleResult(path=path, size=size, image=rest.base, plan_digest=rest.digest)


def build_from_bundle(
    path: Path, manifest: Manifest, plan: BuildPlan, settings: BuildSettings, *, builder: ImageBuilder, tell: Tell,
    clock: Callable[[], float],
) -> BuildResult:  # fmt: skip
    """Load the image of a bundle, and build, prove and tag what is left, its plan; nothing of it needs a network.

    Raises BadInput when the image that was loaded is not the one that was bundled.
    """
    builder.load(path)
    if builder.layers(plan.base) != manifest.layers:
        raise BadInput(
            f"the image {plan.base} is not the one that was bundled: its layers differ",
            cause="the file was changed on its way",
            next_step="compare its sha256 on both sides, and copy it again",
        )
    settings = replace(settings, tags=settings.tags or (manifest.tag,))
    return build_image(plan, settings, builder=builder, tell=tell, clock=clock)
