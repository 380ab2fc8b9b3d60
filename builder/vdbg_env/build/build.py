"""From what was asked for to an image: plan it, build it, prove its line info, and only then give it a name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from gpucore.arch import arch_of_gpu, as_arch
from vdbg_env.build.builder import (
    BuilderDescription,
    BuildEvent,
    BuildFailed,
    BuildOrder,
    BuildxOptions,
    Built,
    ImageBuilder,
    StepStarted,
)
from vdbg_env.common import yaml_source
from vdbg_env.common.console import one_line
from vdbg_env.common.errors import BadInput, EngineFailed, HostNotAble, quoted
from vdbg_env.common.flags import Flag, flag
from vdbg_env.common.programs import ProgramRunner, Programs, read_gpus
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.engine import trees
from vdbg_env.image.context import ROOT, FileBytes
from vdbg_env.image.knowledge import ImageLibrary, read_knowledge
from vdbg_env.image.plan import (
    LABEL_BUILT,
    LABEL_DIGEST,
    LABEL_PROOF,
    MOST_JOBS,
    BuildPlan,
    Machine,
    build_context,
    step_titles,
)
from vdbg_env.image.planner import plan
from vdbg_env.image.profile import (
    BuildRequest,
    DebugInfo,
    DependencyTree,
    Dialect,
    HostGpu,
    LocalTree,
    Network,
    PipIndex,
    Platform,
    ProfileFile,
    Secret,
    Site,
    Source,
    parse_source,
)
from vdbg_env.supervisor.proc import available_memory

if TYPE_CHECKING:
    from gpucore.lineinfo import FileReport, LineinfoReport

DEFAULT_PROFILE = "vllm-cu130"
_NETWORK = "Network, indexes and secrets"


@dataclass(frozen=True, kw_only=True)
class WhatToBuild:
    """The flags of `build`, `bundle` and `render` that say what to build."""

    profile: str = flag(
        help="Profile name, or the path of its YAML file.", default=DEFAULT_PROFILE, show_default=True,
        shell_complete=lambda _context, _parameter, begun: complete_profile(begun),
    )  # fmt: skip
    debug: DebugInfo = flag(
        "--lineinfo", help="Add line tables (the default).", default="lineinfo", flag_value="lineinfo",
        also=Flag(
            names=("--device-debug",),
            help="Compile with -G: variables are readable, nothing is optimised. A last resort.",
            settings={"flag_value": "device-debug"},
        ),
    )  # fmt: skip
    source: str | None = flag(metavar="S", help="vllm==X, git+https://...@REF or a folder (./x).")
    archs: tuple[str, ...] = flag(
        "--arch", default=(), metavar="X.Y",
        help="Compute capability, such as 9.0 or sm_90; repeatable. [default: of the GPU here, else the profile's]",
    )  # fmt: skip
    target: str | None = flag(metavar="EXT", help="Build only this extension of vLLM, such as _moe_C_stable_libtorch.")
    deps: tuple[str, ...] = flag(
        "--dep", default=(), metavar="NAME=DIR",
        help="Use a local tree instead of fetching a project, such as cutlass=./cutlass; repeatable.",
    )  # fmt: skip
    base: str | None = flag(metavar="IMAGE", help="Base image, preferably by digest. [default: the profile's]")
    platform: Platform | None = flag(help="Build for this platform.")
    jobs: int | None = flag(
        between=(1, MOST_JOBS), metavar="N", help="Parallel compilers. [default: from cores and memory]"
    )
    network: Network = flag(default="default", section=_NETWORK, help="Network of build steps.")
    offline_compile: bool = flag(default=False, section=_NETWORK, help="Fetch first, then compile without network.")
    object_cache: str | None = flag(metavar="NAME", help="Cache compiled objects under this name for later builds.")
    guard: bool | None = flag(
        "--guard/--no-guard", help="Run the image's commands under `vdbg-env guard` (the default)."
    )
    secrets: tuple[str, ...] = flag(
        "--secret", default=(), metavar="ID=FILE", section=_NETWORK,
        help="Secret file for build steps, stored in no layer; repeatable.",
    )  # fmt: skip
    ca_bundle: Path | None = flag(section=_NETWORK, help="CA certificates for build steps (PEM).")
    keep_ca: bool = flag(default=False, section=_NETWORK, help="Keep the certificates of --ca-bundle in the image.")
    pip_index_url: str | None = flag(metavar="URL", section=_NETWORK, help="Package index for build steps.")
    pip_extra_index_url: tuple[str, ...] = flag(
        default=(), metavar="URL", section=_NETWORK, help="Additional package index; repeatable."
    )
    apt_mirror: str | None = flag(metavar="URL", section=_NETWORK, help="Mirror for apt.")


def read_request(flags: WhatToBuild, *, dialect: Dialect = "classic") -> tuple[BuildRequest, ImageLibrary]:
    """Turn the flags into a request, with the library of its profile; raises BadInput for what cannot be meant."""
    profile, library = open_profile(flags.profile, user_profiles())
    site, notes = read_site(flags, os.environ)
    deps, secrets = _pairs(flags.deps, "--dep"), _pairs(flags.secrets, "--secret")
    request = BuildRequest(
        profile=profile,
        debug=flags.debug,
        source=None if flags.source is None else _source(flags.source),
        arch=architectures(flags.archs),
        target=flags.target,
        deps=tuple(DependencyTree(name=n, path=trees.existing(p, f"--dep {n}")) for n, p in deps),
        base=flags.base,
        platform=flags.platform,
        jobs=flags.jobs,
        network=flags.network,
        offline_compile=flags.offline_compile,
        object_cache=flags.object_cache,
        guard=trees.own_package() if flags.guard is not False else None,
        site=site,
        secrets=tuple(Secret(id=n, path=_existing_file(p, f"--secret {n}")) for n, p in secrets),
        dialect=dialect,
        notes=notes,
    )
    return request, library


def plan_here(request: BuildRequest, library: ImageLibrary) -> BuildPlan:
    """Plan a request for this machine and its GPU."""
    return plan_build(request, library, gpu=first_gpu(Programs()))


def plan_build(request: BuildRequest, library: ImageLibrary, *, gpu: HostGpu | None) -> BuildPlan:
    """Plan a request, local trees counted by their content; raises BadInput for what cannot be built."""
    return plan(library.spec(request.profile), request, library, gpu=gpu).with_contents(trees.digest)


def build_machine() -> Machine:
    """Return what a build may use: the cores of this process, and the memory that is free."""
    return Machine(cores=len(os.sched_getaffinity(0)), free_memory=available_memory())


def user_profiles() -> Path:
    """Return the user's folder of profiles: VDBG_IMAGES, else the platform's place for configuration."""
    return Path(os.environ.get("VDBG_IMAGES") or platformdirs.user_config_path("vdbg-env") / "images")


def architectures(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the architectures that --arch named, as in 9.0, sm_90 or H100, each once; one value may hold several."""
    parts = [part.strip() for text in texts for part in text.replace(";", ",").split(",")]
    return tuple(dict.fromkeys(arch_of_gpu(part) or as_arch(part) for part in parts))


def _source(text: str) -> Source:
    """Read `--source`, with the commit of a local checkout."""
    source = parse_source(text)
    if not isinstance(source, LocalTree):
        return source
    path = trees.existing(source.path, "--source")
    return LocalTree(path=path, revision=trees.revision(path), version=trees.version(path))


def _pairs(texts: tuple[str, ...], flag: str) -> list[tuple[str, str]]:
    pairs = []
    for text in texts:
        name, equals, path = one_line(text, flag).partition("=")
        if not (name and equals and path):
            example = "cutlass=./cutlass" if flag == "--dep" else "netrc=~/.netrc"
            raise BadInput(f"{flag} {text!r} is not NAME=PATH", next_step=f"write it as in {flag} {example}")
        pairs.append((name, path))
    return pairs


def _existing_file(text: str, flag: str) -> str:
    """Return the real path of a file of this machine; raises BadInput when it does not exist."""
    path = Path(text).expanduser()
    if not path.is_file():
        raise BadInput(
            f"{flag}: {path} is {'not a file' if path.exists() else 'not there'}", next_step=f"ls -l {quoted(path)}"
        )
    return str(path.resolve())


def default_tag(plan: BuildPlan, request: BuildRequest) -> str:
    """Return the name of an image by profile and kind of debug information; a second build replaces it."""
    return f"vdbg/{plan.profile}:{request.debug}"


def first_gpu(programs: ProgramRunner) -> HostGpu | None:
    """Return the GPU that a build is for, None where there is none or its driver does not respond."""
    try:
        gpus = read_gpus(programs).gpus
    except HostNotAble:  # doctor reports a driver that hangs; the build needs no GPU
        return None
    arch = gpus[0].compute_capability if gpus else None
    return HostGpu(driver=gpus[0].driver, arch=arch) if arch else None


# Read the shipped profiles, knowledge and templates, and the user's own, into one value for the planner.


def complete_profile(begun: str) -> list[str]:
    """Return the names of profiles that begin so, for the completion of a shell."""
    return [name for name in sorted(read_image_library(user_profiles()).profiles) if name.startswith(begun)]


def read_image_library(user_folder: Path | None = None, extra: ProfileFile | None = None) -> ImageLibrary:
    """Read what ships with the program and the user's own `user_folder`, and add the one profile `extra`.

    The user's profiles override shipped ones of the same name; so do rows in the `knowledge/` folder there. Raises
    BadInput when a file cannot be read.
    """
    shipped = SHIPPED_DATA / "images"
    profiles = dict(_profiles(shipped, shipped_with_us=True))
    knowledge = sorted((shipped / "knowledge").glob("*.yaml"))
    if user_folder is not None and user_folder.is_dir():
        profiles.update(_profiles(user_folder, shipped_with_us=False))
        knowledge += sorted((user_folder / "knowledge").glob("*.yaml"))
    if extra is not None:
        profiles[profile_name(extra)] = extra
    templates = SHIPPED_DATA / "templates"
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


_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")


def read_site(flags: WhatToBuild, environment: Mapping[str, str]) -> tuple[Site, tuple[str, ...]]:
    """Return the site, and a note for each thing that the environment decided.

    The environment counts because a machine that needs PIP_CERT or HTTPS_PROXY needs them in the build too.
    Folders of this machine (`file:` indexes) do not exist in an image and are left out, with a note. Raises BadInput
    for a file without certificates or one that cannot be read.
    """
    notes: list[str] = []
    ca = flags.ca_bundle or _from_environment(environment, ("VDBG_CA_BUNDLE", "PIP_CERT", "SSL_CERT_FILE"), notes)
    index = flags.pip_index_url or environment.get("PIP_INDEX_URL")
    if index and index.startswith("file:"):
        notes.append(f"PIP_INDEX_URL={index} is a folder of this machine and not used in the image")
        index = None
    extra = flags.pip_extra_index_url or tuple(environment.get("PIP_EXTRA_INDEX_URL", "").split())
    if any(url.startswith("file:") for url in extra):
        notes.append("folders of this machine in PIP_EXTRA_INDEX_URL are not used in the image")
    site = Site(
        ca_bundle=None if ca is None else _certificates(Path(ca)),
        keep_ca=flags.keep_ca,
        proxies=_proxies(environment),
        pip=PipIndex(
            index_url=index,
            extra_index_urls=tuple(url for url in extra if not url.startswith("file:")),
            trusted_hosts=tuple(environment.get("PIP_TRUSTED_HOST", "").split()),
        ),
        apt_mirror=flags.apt_mirror or environment.get("VDBG_APT_MIRROR"),
    )
    return site, tuple(notes)


def _from_environment(environment: Mapping[str, str], names: tuple[str, ...], notes: list[str]) -> Path | None:
    name = next((name for name in names if environment.get(name)), None)
    if name is None:
        return None
    notes.append(f"certificates from {name}={environment[name]}; --ca-bundle names others")
    return Path(environment[name])


def _certificates(path: Path) -> bytes:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BadInput(
            f"the certificates in {path} cannot be read: {error.strerror}", next_step=f"ls -l {quoted(path)}"
        ) from None
    if b"-----BEGIN CERTIFICATE-----" not in text:
        raise BadInput(
            f"{path} has no certificate in it",
            cause="a certificate in binary (DER) form, or another file",
            next_step=f"openssl x509 -inform der -in {quoted(path)} -out ca.pem",
        )
    return text


def _proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the proxies by both of their spellings, since curl reads one and others the other."""
    found: dict[str, str] = {}
    for name in _PROXIES:
        value = environment.get(name) or environment.get(name.upper())
        if value:
            found |= {name: value, name.upper(): value}
    return found


# Build from a plan, prove, tag, and what is printed of it.


PREPARED = "vdbg/prepared"
"""The name of the fetching half of an offline build, while the compiling half is built on it."""

Tell = Callable[[BuildEvent], None]


@dataclass(frozen=True, kw_only=True)
class BuildSettings:
    """What is of this machine and of this call, and so in no plan: values for arguments, secrets, names, jobs."""

    tags: tuple[str, ...] = ()
    build_args: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)
    jobs: int | None = None
    offline_compile: bool = False
    no_cache: bool = False
    push: bool = False
    output: Path | None = None
    threads: int = 1
    buildx: BuildxOptions = field(default_factory=BuildxOptions)


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """A proven image: its id, names, plan and proof, and the builder that built it; time in seconds, sizes in bytes.

    `digest` is the manifest digest where the builder has one, `pushed_digest` the registry's, `saved` the file written.
    """

    image_id: str
    tags: tuple[str, ...]
    plan: BuildPlan
    proof: LineinfoReport
    builder: BuilderDescription
    duration_s: float
    digest: str | None = None
    pushed_digest: str | None = None
    saved: str | None = None
    saved_bytes: int | None = None


def build_image(
    plan: BuildPlan, settings: BuildSettings, *, builder: ImageBuilder, tell: Tell, clock: Callable[[], float]
) -> BuildResult:
    """Build, prove, tag, save and push; `tell` gets every event of the builder at once.

    Raises EngineFailed when a step fails, with the step, the reason and its last lines; NotProven when the libraries
    built do not all carry line info, in which case the image keeps no name.
    """
    from vdbg_env.build.prove import prove_image, require_proven  # a plan and a rendering need no reader of cubins

    started = clock()
    built = _build(plan, settings, builder, tell)
    proof = prove_image(builder, built.image_id, plan, threads=settings.threads)
    require_proven(proof, built.image_id)
    # What compiles without network is a separate plan on what was fetched; the image is the whole plan's.
    made = json.dumps([f"{ROOT}/{artifact}" for artifact in plan.artifacts])
    labels = {LABEL_PROOF: proof_label(proof), LABEL_DIGEST: plan.digest, LABEL_BUILT: made}
    image_id = builder.tag(built.image_id, settings.tags, labels)
    saved_bytes = builder.save((*settings.tags, image_id)[0], settings.output) if settings.output else None
    pushed_digest = _push(builder, settings.tags) if settings.push else None
    return BuildResult(
        image_id=image_id,
        tags=settings.tags,
        plan=plan,
        proof=proof,
        builder=builder.describe(),
        digest=built.digest,
        pushed_digest=pushed_digest,
        saved=str(settings.output) if settings.output else None,
        saved_bytes=saved_bytes,
        duration_s=clock() - started,
    )


def proof_label(proof: LineinfoReport) -> str:
    """Return the proof in one short line for the image's label; all of it is in the metadata file."""
    counts = proof.counts
    witnesses = {f.witness.tool for f in proof.files if f.witness and f.witness.agrees}
    seen = f"; seen by {', '.join(sorted(witnesses))} too" if witnesses else ""
    covered = f"rows cover {proof.covered.instructions_covered} of {proof.covered.instructions} instructions"
    cubins = f"{counts.with_debug_line} of {counts.with_code} cubins with code carry .debug_line"
    return f"{proof.verdict}: {cubins}; {covered}{seen}"


def dialect_of(builder: BuilderDescription) -> Dialect:
    """Return which Dockerfile instructions a builder is known to take; the conservative ones unless it says more."""
    return "buildkit" if "cache-mounts" in builder.capabilities else "classic"


def _build(plan: BuildPlan, settings: BuildSettings, builder: ImageBuilder, tell: Tell) -> Built:
    if not settings.offline_compile:
        return _run(plan, settings, builder, tell)
    rest = fetch_first(plan, settings, builder, tell)
    return _run(rest, replace(settings, buildx=replace(settings.buildx, cache_from=(), cache_to=())), builder, tell)


def fetch_first(plan: BuildPlan, settings: BuildSettings, builder: ImageBuilder, tell: Tell) -> BuildPlan:
    """Build what fetches, and return what is left: a plan without network, on the image that this has made."""
    # One Dockerfile cannot take the network from some of its steps on every builder (RUN --network needs a newer
    # frontend), so what fetches is built first and what compiles is built on that image, without network.
    name = f"{PREPARED}:{plan.digest.removeprefix('sha256:')[:12]}"
    fetch, compile_only = plan.split_before_compile(name)
    # What a registry may keep is what was fetched; attestations are of the image that gets the name.
    fetching = replace(settings, buildx=replace(settings.buildx, sbom=None, provenance=None))
    builder.tag(_run(fetch, fetching, builder, tell).image_id, [name], {})
    return compile_only


def _run(plan: BuildPlan, settings: BuildSettings, builder: ImageBuilder, tell: Tell) -> Built:
    dialect = dialect_of(builder.describe())
    order = BuildOrder(
        plan=plan,
        context=build_context(plan, dialect),
        build_args=settings.build_args,
        secrets=settings.secrets,
        jobs=settings.jobs,
        no_cache=settings.no_cache,
        buildx=settings.buildx,
    )
    built: Built | None = None
    with closing(builder.build(order)) as events:  # to close it early is to cancel, so it is read to its end
        for event in _with_titles(events, step_titles(plan, dialect)):
            tell(event)
            if isinstance(event, BuildFailed):
                raise _failure(event)
            built = event if isinstance(event, Built) else built
    if built is None:
        raise EngineFailed(
            "the builder stopped without saying how the build ended",
            cause="it was ended, or its connection broke",
            next_step="vdbg-env doctor",
        )
    return built


def _with_titles(events: Iterator[BuildEvent], titles: tuple[str, ...]) -> Iterator[BuildEvent]:
    """Give each step the plan's own title, where the builder numbers its steps as our Dockerfile does."""
    known: dict[str | None, str] = {}
    for event in events:
        match event:
            case StepStarted(number=int(number), total=total) if number <= len(titles) == total:
                known[event.key] = titles[number - 1]
                yield replace(event, title=known[event.key])
            case BuildFailed():
                yield replace(event, title=known.get(event.key, event.title))
            case _:
                yield event


def _failure(event: BuildFailed) -> EngineFailed:
    status = f" with exit status {event.code}" if event.code is not None else ""
    return EngineFailed(
        f"the build failed at: {event.title}{status}",
        cause=event.cause or None,
        next_step=event.next_step or "the same command with --verbose shows every line",
        details=tuple(f"| {line}" for line in event.tail),
    )


def _push(builder: ImageBuilder, tags: tuple[str, ...]) -> str | None:
    digest = None
    for tag in tags:
        for progress in builder.push(tag):
            digest = progress.digest or digest
    return digest


def build_text(result: BuildResult) -> str:
    """Return what a build prints at its end, once it is proven."""
    from vdbg_env.build.prove import coverage_text

    counts = result.proof.counts
    lines = [
        f"proven    {counts.with_debug_line} of {counts.with_code} cubins with code carry line info",
        f"          {coverage_text(result.proof.covered)}",
        *(f"          {_file_line(file)}" for file in result.proof.files if file.counts.with_code),
        f"image     {result.image_id}",
        *(f"tag       {tag}" for tag in result.tags),
        f"plan      {result.plan.digest}",
        f"builder   {result.builder.name} {result.builder.version}: {result.builder.why}",
    ]
    if result.pushed_digest:
        lines.append(f"pushed    {result.pushed_digest}")
    if result.saved:
        lines.append(f"saved     {result.saved}, {(result.saved_bytes or 0) / 1e6:.0f} MB")
    lines.append(f"time      {result.duration_s:.1f} s")
    return "\n".join([*lines, ""])


def _file_line(file: FileReport) -> str:
    archs = ", ".join(f"{arch} {c.with_code}" for arch, c in file.archs if c.with_code)
    seen = f"; {file.witness.tool} agrees" if file.witness and file.witness.agrees else ""
    return f"{file.path}: {file.counts.with_debug_line} of {file.counts.with_code} ({archs}){seen}"


def build_json(result: BuildResult) -> dict[str, Any]:
    """Return the result as docs/schemas/build-v1.schema.json describes it."""
    from vdbg_env.build.prove import verify_json

    return {
        "schema": "vdbg-env/build/v1",
        "image_id": result.image_id,
        "digest": result.digest,
        "tags": list(result.tags),
        "pushed_digest": result.pushed_digest,
        "saved": result.saved,
        "saved_bytes": result.saved_bytes,
        "engine": {"name": result.builder.name, "version": result.builder.version, "why": result.builder.why},
        "duration_s": round(result.duration_s, 3),
        "plan_digest": result.plan.digest,
        "plan": result.plan.document(),
        "proof": verify_json(result.proof),
    }
