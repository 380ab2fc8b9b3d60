"""The flags that say what to build, shared by `build` and `render`, and the request they make."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import click
import platformdirs

from vdbg_env.application.image.library import profile_name, read_image_library
from vdbg_env.application.image.site import SiteFlags, read_site
from vdbg_env.cli import composition
from vdbg_env.common import console
from vdbg_env.common.errors import BadInput
from vdbg_env.image.plan.plan import BuildPlan
from vdbg_env.image.plan.planner import plan
from vdbg_env.image.profile.library import ImageLibrary, ProfileFile
from vdbg_env.image.profile.request import BuildRequest, DebugInfo, DependencyTree, Dialect, Network, Platform, Secret
from vdbg_env.image.profile.source import LocalTree, Source, parse_source
from vdbg_env.image.profile.spec import ImageSpec
from vdbg_env.image.text import one_line

Function = TypeVar("Function", bound=Callable[..., Any])
DEFAULT_PROFILE = "vllm-cu130"

_OPTIONS = (
    click.option("--profile", default=DEFAULT_PROFILE, show_default=True, help="A profile's name, or its YAML file."),
    click.option("--lineinfo", "debug", flag_value="lineinfo", default="lineinfo", help="Line tables (the default)."),
    click.option("--device-debug", "debug", flag_value="device-debug", help="-G: no optimisation; the last resort."),
    click.option("--source", metavar="S", help="vllm==X, git+https://...@REF, or a folder (./x)."),
    click.option("--arch", "archs", multiple=True, metavar="X.Y", help="Compute capability; repeat for several."),
    click.option("--target", metavar="EXT", help="Build this one extension only."),
    click.option("--dep", "deps", multiple=True, metavar="NAME=DIR", help="A local tree for a dependency."),
    click.option("--base", metavar="IMAGE", help="Another base image, best by digest."),
    click.option("--platform", type=click.Choice(["linux/amd64", "linux/arm64"]), help="Build for this platform."),
    click.option("--jobs", type=int, metavar="N", help="Compilers at once; else from cores and memory."),
    click.option("--network", type=click.Choice(["default", "host", "none"]), default="default", help="Of the steps."),
    click.option("--offline-compile", is_flag=True, help="Fetch first, then compile without network."),
    click.option("--secret", "secrets", multiple=True, metavar="ID=FILE", help="Read by steps, in no layer."),
    click.option("--ca-bundle", type=click.Path(path_type=Path), help="Certificates that the steps trust (PEM)."),
    click.option("--keep-ca", is_flag=True, help="Leave them in the image."),
    click.option("--pip-index-url", metavar="URL", help="Package index of the steps."),
    click.option("--pip-extra-index-url", multiple=True, metavar="URL", help="One more index."),
    click.option("--apt-mirror", metavar="URL", help="Where apt fetches from."),
)


def build_options(function: Function) -> Function:
    """Give a command the flags that say what to build; they reach it as one mapping, for `read_wish`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@dataclass(frozen=True, kw_only=True)
class Wish:
    """The request, the library it is to be met from, and what to tell the user of where its values came from."""

    request: BuildRequest
    library: ImageLibrary
    notes: tuple[str, ...]

    @cached_property
    def spec(self) -> ImageSpec:
        """The profile, with what it inherits."""
        return self.library.spec(self.request.profile)


def read_wish(flags: dict[str, Any], *, dialect: Dialect = "classic") -> Wish:
    """Turn the flags of `build_options` into a request; raises BadInput for what makes none."""
    profile, library = read_library(flags["profile"])
    site_flags = SiteFlags(
        ca_bundle=flags["ca_bundle"],
        keep_ca=flags["keep_ca"],
        index_url=flags["pip_index_url"],
        extra_index_urls=tuple(flags["pip_extra_index_url"]),
        apt_mirror=flags["apt_mirror"],
    )
    site, notes = read_site(site_flags, os.environ)
    request = BuildRequest(
        profile=profile,
        debug=cast(DebugInfo, flags["debug"]),
        source=_source(flags["source"]),
        arch=tuple(part.strip() for text in flags["archs"] for part in text.replace(";", ",").split(",")),
        target=flags["target"],
        deps=tuple(DependencyTree(name=n, path=_folder(p, f"--dep {n}")) for n, p in _pairs(flags["deps"], "--dep")),
        base=flags["base"],
        platform=cast(Platform | None, flags["platform"]),
        jobs=flags["jobs"],
        network=cast(Network, flags["network"]),
        offline_compile=flags["offline_compile"],
        site=site,
        secrets=tuple(Secret(id=n, path=_file(p, f"--secret {n}")) for n, p in _pairs(flags["secrets"], "--secret")),
        dialect=dialect,
    )
    return Wish(request=request, library=library, notes=notes)


def decide(wish: Wish) -> BuildPlan:
    """Plan what is wished for on this machine; raises BadInput for what the tables or the profile rule out."""
    decided = plan(wish.spec, wish.request, wish.library, gpu=composition.gpu())
    return decided.with_contents(composition.source_trees().digest)


def read_library(profile: str) -> tuple[str, ImageLibrary]:
    """Return a profile's name and the library that holds it; `profile` may be the path of a YAML file."""
    path = Path(profile).expanduser() if "/" in profile or profile.endswith((".yaml", ".yml")) else None
    library = read_image_library(user_profiles(), path)
    if path is None:
        return profile, library
    file = next(f for f in library.profiles.values() if f.file == str(path))
    return profile_name(ProfileFile(file=file.file, text=file.text, shipped=False)), library


def user_profiles() -> Path:
    """Return the folder of the user's own profiles: VDBG_IMAGES, else the platform's place for configuration."""
    return Path(os.environ.get("VDBG_IMAGES") or platformdirs.user_config_path("vdbg-env") / "images")


def show_notes(notes: tuple[str, ...], warnings: tuple[str, ...]) -> None:
    """Tell on the error stream what was decided for the user, and what may surprise."""
    for text in notes:
        console.note(f"note: {text}")
    for text in warnings:
        console.note(f"warning: {text}")


def _source(text: str | None) -> Source | None:
    if text is None:
        return None
    source = parse_source(text)
    if not isinstance(source, LocalTree):
        return source
    path = _folder(source.path, "--source")
    return LocalTree(path=path, revision=composition.source_trees().revision(path))


def _pairs(texts: tuple[str, ...], flag: str) -> list[tuple[str, str]]:
    pairs = []
    for text in texts:
        name, equals, path = one_line(text, flag).partition("=")
        if not (name and equals and path):
            example = "cutlass=./cutlass" if flag == "--dep" else "netrc=~/.netrc"
            raise BadInput(f"{flag} {text!r} is not NAME=PATH", next_step=f"write it as in {flag} {example}")
        pairs.append((name, path))
    return pairs


def _folder(text: str, flag: str) -> str:
    path = Path(one_line(text, flag)).expanduser()
    if not path.is_dir():
        what = "a file, not a folder" if path.exists() else "not there"
        raise BadInput(f"{flag}: {path} is {what}", next_step="name a folder that exists")
    return str(path.resolve())


def _file(text: str, flag: str) -> str:
    path = Path(text).expanduser()
    if not path.is_file():
        raise BadInput(f"{flag}: {path} is {'not a file' if path.exists() else 'not there'}", next_step=f"ls -l {path}")
    return str(path.resolve())


def default_tag(plan: BuildPlan, request: BuildRequest) -> str:
    """Name an image by profile and kind, so that a second build replaces the first and a proof is never mistaken."""
    return f"vdbg/{plan.profile}:{request.debug}"
