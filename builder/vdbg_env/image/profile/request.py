"""A requested build: the flags as one value, with the settings of the site and of the builder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from vdbg_env.image.context import FileBytes
from vdbg_env.image.profile.source import Source

DebugInfo = Literal["lineinfo", "device-debug"]
Network = Literal["default", "host", "none"]
Platform = Literal["linux/amd64", "linux/arm64"]
Dialect = Literal["classic", "buildkit"]
"""Which Dockerfile instructions the builder takes.

`classic`: those of every builder; the default, since a rendered folder must build anywhere. `buildkit`: also
`RUN --mount` of types cache, bind and secret, which the BuildKit inside every Docker Engine since 18.09 takes. Neither
uses heredocs or `COPY --link`, which fail on older BuildKit, nor `# syntax=` lines, which pull an image from a registry
that an air-gapped cluster cannot reach.
"""


@dataclass(frozen=True, kw_only=True)
class DependencyTree:
    """A local folder used instead of a dependency that the build would fetch; `path` is on this machine."""

    name: str
    path: str


@dataclass(frozen=True, kw_only=True)
class Secret:
    """A file of this machine that build steps may read and no layer may contain; `id` names it in the Dockerfile."""

    id: str
    path: str


@dataclass(frozen=True, kw_only=True)
class PipIndex:
    """Where pip looks; addresses only, credentials are passed as a Secret."""

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    trusted_hosts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Site:
    """The settings of this site: its certificate authority, proxies, package index and apt mirror."""

    ca_bundle: bytes | None = None
    keep_ca: bool = False
    proxies: Mapping[str, str] = field(default_factory=dict)
    pip: PipIndex = field(default_factory=PipIndex)
    apt_mirror: str | None = None


@dataclass(frozen=True, kw_only=True)
class HostGpu:
    """This machine's GPU: the version of its driver, and its compute capability ("9.0")."""

    driver: str
    arch: str


@dataclass(frozen=True, kw_only=True)
class OwnPackage:
    """This program, for an image that contains it: its wheel, a file of the build context, and what that requires."""

    wheel: FileBytes
    requirements: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """One requested build; None and empty mean what the profile says.

    `arch` are compute capabilities ("9.0"), `jobs` the number of compiler processes, `base` an image reference that
    may end in a digest. With `offline_compile` the steps that compile run without network, after the others have
    fetched what they need (see `BuildPlan.split_before_compile`). `object_cache` is the name under which the builder
    keeps compiled objects between builds. With `guard` the image contains that package, and its entry point guards the
    command. `notes` name the origin of values.
    """

    profile: str
    debug: DebugInfo = "lineinfo"
    source: Source | None = None
    arch: tuple[str, ...] = ()
    target: str | None = None
    deps: tuple[DependencyTree, ...] = ()
    base: str | None = None
    platform: Platform | None = None
    jobs: int | None = None
    network: Network = "default"
    offline_compile: bool = False
    object_cache: str | None = None
    guard: OwnPackage | None = None
    site: Site = field(default_factory=Site)
    secrets: tuple[Secret, ...] = ()
    dialect: Dialect = "classic"
    notes: tuple[str, ...] = ()
