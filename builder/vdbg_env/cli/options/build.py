"""The flags that say what to build, shared by `build` and `render`, and the request they make."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import click
import platformdirs

from gpucore.arch import as_arch
from vdbg_env.application.host.gpu import first_gpu
from vdbg_env.build.request import SiteFlags, open_profile, plan_build, read_site, read_source
from vdbg_env.cli.composition.images import own_package, programs, source_trees
from vdbg_env.cli.options.given import with_options
from vdbg_env.common import console
from vdbg_env.common.errors import BadInput
from vdbg_env.image.context import one_line
from vdbg_env.image.knowledge import ImageLibrary
from vdbg_env.image.plan import MOST_JOBS, BuildPlan
from vdbg_env.image.profile import BuildRequest, DebugInfo, DependencyTree, Dialect, Network, Platform, Secret

DEFAULT_PROFILE = "vllm-cu130"


class Builders(click.Choice[str]):
    """The builders that `--engine` names; what was one of them once is refused with what took its place."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "classic":
            self.fail(
                "the classic builder is no longer used. Instead: apt-get install docker-buildx, or --engine buildkit",
                param, ctx,
            )  # fmt: skip
        return super().convert(value, param, ctx)


# A command gets them as one mapping, for `read_request`.
build_options = with_options(
    click.option("--profile", default=DEFAULT_PROFILE, show_default=True, help="A profile's name, or its YAML file."),
    click.option("--lineinfo", "debug", flag_value="lineinfo", default="lineinfo", help="Line tables (the default)."),
    click.option(
        "--device-debug",
        "debug",
        flag_value="device-debug",
        help="Compile with -G: variables can be read, but nothing is optimised; the last resort.",
    ),
    click.option("--source", metavar="S", help="vllm==X, git+https://...@REF, or a folder (./x)."),
    click.option(
        "--arch",
        "archs",
        multiple=True,
        metavar="X.Y",
        help="Compute capability of the GPUs, as in 9.0 or sm_90; repeatable. The GPU here, else the profile's.",
    ),
    click.option(
        "--target", metavar="EXT", help="Build this one extension of vLLM only, as in _moe_C_stable_libtorch."
    ),
    click.option(
        "--dep",
        "deps",
        multiple=True,
        metavar="NAME=DIR",
        help="A local tree for a project that the build fetches, as in cutlass=./cutlass; repeatable.",
    ),
    click.option("--base", metavar="IMAGE", help="Another base image than the profile's, best by digest."),
    click.option("--platform", type=click.Choice(["linux/amd64", "linux/arm64"]), help="Build for this platform."),
    click.option(
        "--jobs",
        type=click.IntRange(1, MOST_JOBS),
        metavar="N",
        help="Compilers at once; else by cores and memory.",
    ),
    click.option(
        "--network",
        type=click.Choice(["default", "host", "none"]),
        default="default",
        help="The network that build steps have.",
    ),
    click.option("--offline-compile", is_flag=True, help="Fetch first, then compile without network."),
    click.option("--object-cache", metavar="NAME", help="Keep compiled objects for the next build of this name."),
    click.option(
        "--guard/--no-guard", default=None, help="Guard what the image runs (the default, except with --onto)."
    ),
    click.option(
        "--secret",
        "secrets",
        multiple=True,
        metavar="ID=FILE",
        help="A secret file that build steps can read, kept in no layer; repeatable.",
    ),
    click.option("--ca-bundle", type=click.Path(path_type=Path), help="Certificates that build steps trust (PEM)."),
    click.option("--keep-ca", is_flag=True, help="Leave the certificates of --ca-bundle in the image."),
    click.option("--pip-index-url", metavar="URL", help="The package index of build steps."),
    click.option("--pip-extra-index-url", multiple=True, metavar="URL", help="One more package index; repeatable."),
    click.option("--apt-mirror", metavar="URL", help="The mirror that apt fetches from."),
)


def read_request(flags: dict[str, Any], *, dialect: Dialect = "classic") -> tuple[BuildRequest, ImageLibrary]:
    """Turn the flags of `build_options` into a request, with the library of its profile; raises BadInput."""
    profile, library = open_profile(flags["profile"], user_profiles())
    site_flags = SiteFlags(
        ca_bundle=flags["ca_bundle"],
        keep_ca=flags["keep_ca"],
        index_url=flags["pip_index_url"],
        extra_index_urls=tuple(flags["pip_extra_index_url"]),
        apt_mirror=flags["apt_mirror"],
    )
    site, notes = read_site(site_flags, os.environ)
    trees = source_trees()
    deps, secrets = _pairs(flags["deps"], "--dep"), _pairs(flags["secrets"], "--secret")
    request = BuildRequest(
        profile=profile,
        debug=cast(DebugInfo, flags["debug"]),
        source=read_source(flags["source"], trees) if flags["source"] is not None else None,
        arch=architectures(flags["archs"]),
        target=flags["target"],
        deps=tuple(DependencyTree(name=n, path=trees.existing(p, f"--dep {n}")) for n, p in deps),
        base=flags["base"],
        platform=cast(Platform | None, flags["platform"]),
        jobs=flags["jobs"],
        network=cast(Network, flags["network"]),
        offline_compile=flags["offline_compile"],
        object_cache=flags["object_cache"],
        guard=own_package() if flags["guard"] is not False else None,
        site=site,
        secrets=tuple(Secret(id=n, path=_existing_file(p, f"--secret {n}")) for n, p in secrets),
        dialect=dialect,
        notes=notes,
    )
    return request, library


def _existing_file(text: str, flag: str) -> str:
    """Return the real path of a file of this machine; raises BadInput when it does not exist."""
    path = Path(text).expanduser()
    if not path.is_file():
        raise BadInput(f"{flag}: {path} is {'not a file' if path.exists() else 'not there'}", next_step=f"ls -l {path}")
    return str(path.resolve())


def plan_here(request: BuildRequest, library: ImageLibrary) -> BuildPlan:
    """Plan a request for this machine and its GPU."""
    return plan_build(request, library, gpu=first_gpu(programs()), trees=source_trees())


def user_profiles() -> Path:
    """Return the user's folder of profiles: VDBG_IMAGES, else the platform's place for configuration."""
    return Path(os.environ.get("VDBG_IMAGES") or platformdirs.user_config_path("vdbg-env") / "images")


def show_notes(notes: tuple[str, ...], warnings: tuple[str, ...]) -> None:
    """Print notes and warnings on the error stream."""
    for text in notes:
        console.note(f"note: {text}")
    for text in warnings:
        console.note(f"warning: {text}")


def require_writable(path: Path | None) -> None:
    """Refuse before hours of building, not after."""
    if path is not None and not os.access(path.parent or Path(), os.W_OK | os.X_OK):
        raise BadInput(
            f"{path} cannot be written",
            cause="its folder is missing or not yours",
            next_step=f"mkdir -p {shlex.quote(str(path.parent))}, or name a file in another folder",
        )


def write_result(path: Path, text: str) -> None:
    """Write what --metadata-file asked for; raises BadInput where that is not possible."""
    try:
        path.write_text(text)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from None


def architectures(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the architectures that --arch named, as in 9.0 or sm_90; one value may hold several."""
    return tuple(as_arch(part.strip()) for text in texts for part in text.replace(";", ",").split(","))


def _pairs(texts: tuple[str, ...], flag: str) -> list[tuple[str, str]]:
    pairs = []
    for text in texts:
        name, equals, path = one_line(text, flag).partition("=")
        if not (name and equals and path):
            example = "cutlass=./cutlass" if flag == "--dep" else "netrc=~/.netrc"
            raise BadInput(f"{flag} {text!r} is not NAME=PATH", next_step=f"write it as in {flag} {example}")
        pairs.append((name, path))
    return pairs
