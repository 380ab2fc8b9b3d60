"""Turn a profile and a request into a plan; pure: the same two give the same plan."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import chain
from urllib.parse import urlsplit

from vdbg_env.common.errors import BadInput, nearest
from vdbg_env.image.blocks import ENTRYPOINT, PACKAGES, SITE, Blocks, ShellTemplates
from vdbg_env.image.context import ROOT, ContextItem, FileBytes, TreeOnDisk
from vdbg_env.image.knowledge import Combination, ImageLibrary, VllmRow, require_compatible
from vdbg_env.image.plan import BuildArg, BuildPlan, Step, image_environment, overridden
from vdbg_env.image.profile import (
    BuildRequest,
    Bundled,
    GitRef,
    HostGpu,
    ImageSpec,
    LocalTree,
    Sdist,
    Source,
    parse_reference,
    refuse_credentials,
    release_of,
)

# Objects of an earlier build, which ninja would take for fresh, and large files that no compiler reads.
NOT_SOURCE = (
    ".git", ".deps", ".venv", "__pycache__", "/build", "cmake-build-*", "/dist", "*.egg-info", "*.o", "*.so", "*.whl"
)  # fmt: skip
NOT_DEPENDENCY = (".git", "__pycache__", "*.o", "*.so")


GUARD = (f"{ROOT}/vdbg-env", "guard", "--")
"""What the entry point puts before the command; see templates/entrypoint.sh."""


def plan(spec: ImageSpec, request: BuildRequest, library: ImageLibrary, *, gpu: HostGpu | None = None) -> BuildPlan:
    """Decide everything about one build; `gpu` is that of this machine.

    The image is taken to run on this machine unless the request names an architecture or a platform: then neither the
    architecture nor the driver of `gpu` decides anything.

    Raises BadInput for a request that cannot be met, before anything is built.
    """
    check(request)
    if request.arch or request.platform is not None:
        gpu = None
    source = request.source or spec.parsed_source
    _check_addresses(spec, request, source)
    arch, why_arch = _architectures(spec, request, gpu)
    vllm = _vllm_row(spec, source, library)
    requirements = _requirements(spec, source, vllm)
    warnings = require_compatible(_combination(spec, request, source, arch, requirements, gpu), library.knowledge)
    _check_names(spec, request, vllm)
    blocks = Blocks(
        spec=spec, request=request, source=source, arch=arch, requirements=requirements, vllm=vllm,
        templates=ShellTemplates(library.step_templates),
    )  # fmt: skip
    return BuildPlan(
        profile=spec.name,
        base=_base(spec, request),
        base_path=spec.base.path,
        platform=request.platform,
        network=request.network,
        args=_build_args(spec, request),
        env=image_environment(spec, request, arch),
        labels=_labels(spec, request, source, arch),
        steps=_steps(blocks),
        artifacts=_artifacts(spec, request),
        entrypoint=(f"{ROOT}/entrypoint.sh", *(GUARD if request.guard else ())),
        command=("bash",),
        arch=arch,
        memory_per_job_gib=spec.build.memory_per_job_gib,
        context=_context(spec.build.system, request, source, library),
        notes=(*why_arch, *_notes(request), *_other_stack(spec, request, vllm)),
        warnings=(*_debug_warnings(request), *overridden(spec), *_other_torch(spec, vllm), *warnings),
    )


def check(request: BuildRequest) -> None:
    """Refuse what no plan may contain: wrong architectures, and names that mean something to a Dockerfile."""
    for arch in request.arch:
        if not re.fullmatch(r"[0-9]{1,2}\.[0-9][af]?", arch):
            near = f"{arch[:-1]}.{arch[-1]}" if arch.isdigit() and len(arch) > 1 else "9.0"
            raise BadInput(
                f"{arch!r} is not an architecture", cause="a compute capability has a point", next_step=f"--arch {near}"
            )
    for word, names in (("--dep", [d.name for d in request.deps]), ("--secret", [s.id for s in request.secrets])):
        for name in names:
            if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,62}", name):
                raise BadInput(f"{word}: {name!r} is not a name of small letters, digits, '.', '_' and '-'")
        if len(set(names)) < len(names):
            raise BadInput(f"{word}: a name is given twice", next_step=f"give each name one {word}")
    if request.object_cache is not None and not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,62}", request.object_cache):
        raise BadInput(
            f"--object-cache {request.object_cache!r} is not a name of small letters, digits, '.', '_' and '-'",
            cause="the builder keeps the cache; it is not a folder",
            next_step="--object-cache vllm",
        )
    if request.target is not None and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", request.target):
        raise BadInput(f"--target {request.target!r} is not the name of a build target")


def _check_addresses(spec: ImageSpec, request: BuildRequest, source: Source) -> None:
    pip = request.site.pip
    for what, url in [
        ("the package index", pip.index_url),
        *(("the package index", extra) for extra in (*pip.extra_index_urls, *spec.packages.indexes)),
        ("the apt mirror", request.site.apt_mirror),
    ]:
        if url is not None:
            _check_address(url, what)
    if isinstance(source, GitRef):
        refuse_credentials(source.url, "the git source")
    texts = [
        *(v for v in spec.environment.values() if v), *spec.build.cmake_args, *chain(*spec.build.prepare),
        *spec.toolchain.wheels, *spec.packages.build, *spec.packages.tools, *chain(*(t.argv for t in spec.tools)),
    ]  # fmt: skip
    for text in texts:
        for url in re.findall(r"[a-z+]+://[^\s'\"]+", text):
            refuse_credentials(url, "an address in the profile")


def _check_address(url: str, what: str) -> None:
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if (
        parts.scheme not in {"http", "https"}
        or not parts.hostname
        or any(c.isspace() or not c.isprintable() for c in url)
    ):
        raise BadInput(f"{what} {url!r} is not an address", next_step="write it as https://HOST/PATH")
    refuse_credentials(url, f"the address of {what}")


def _steps(blocks: Blocks) -> tuple[Step, ...]:
    """Return the steps, those first that change least: each one that changes repeats all that follow it."""
    tools = (blocks.tools(), *blocks.guard_requirements())
    offline = blocks.request.offline_compile
    return (
        *((SITE,) if blocks.request.site.ca_bundle is not None else ()),
        blocks.packages(),
        blocks.toolchain(),
        blocks.python(),
        *(tools if offline else ()),
        *blocks.fetch_source(),
        *blocks.source_requirements(),
        *blocks.object_cache(),
        *blocks.dependencies(),
        *blocks.copy_source(),
        *blocks.prepare(),
        *blocks.externals(),
        blocks.compile(),
        *(() if offline else tools),
        blocks.check(),
        *blocks.guard(),
        ENTRYPOINT,
    )


def _vllm_row(spec: ImageSpec, source: Source, library: ImageLibrary) -> VllmRow | None:
    if spec.build.system != "vllm":
        return None
    return library.knowledge.vllm_row(release_of(source) or "")


def _requirements(spec: ImageSpec, source: Source, vllm: VllmRow | None) -> tuple[str, ...]:
    """Return the profile's build requirements, with the torch of the requested release.

    For a release that no row describes, torch has no version here: the release's own requirements pin it.
    """
    release = release_of(source)
    if vllm is None or release is None or source == spec.parsed_source:
        return spec.packages.build
    torch = f"torch=={vllm.torch}" if vllm.version == release else "torch"
    return tuple(torch if r.startswith("torch==") else r for r in spec.packages.build)


def _combination(
    spec: ImageSpec, request: BuildRequest, source: Source, arch: tuple[str, ...], requirements: tuple[str, ...],
    gpu: HostGpu | None,
) -> Combination:  # fmt: skip
    # Another base may contain any compiler: only the profile's own base is known.
    own = request.base is None
    torch = next((r.removeprefix("torch==") for r in requirements if r.startswith("torch==")), None)
    vllm = release_of(source) if spec.build.system == "vllm" else None
    return Combination(
        cuda=spec.toolchain.cuda, arch=arch, gcc=spec.base.gcc if own else None,
        python=spec.base.python if own else None, torch=torch, vllm=vllm, driver=gpu.driver if gpu else None,
    )  # fmt: skip


def _check_names(spec: ImageSpec, request: BuildRequest, vllm: VllmRow | None) -> None:
    """Refuse targets and dependencies that the release does not have."""
    known = vllm.dependencies if vllm else {}
    for dep in request.deps:
        if dep.name not in known:
            near = nearest(dep.name, known)
            raise BadInput(
                f"--dep {dep.name}: the build has no such dependency",
                cause=f"did you mean {near!r}?" if near else f"profile {spec.name} fetches nothing by itself",
                next_step=f"known are {', '.join(known)}" if known else "leave --dep out",
            )
    if request.target and vllm and vllm.targets and request.target not in vllm.targets:
        near = nearest(request.target, vllm.targets)
        raise BadInput(
            f"--target {request.target}: vLLM {vllm.version} has no such extension",
            cause=f"did you mean {near!r}?" if near else None,
            next_step=f"known are {', '.join(vllm.targets)}",
        )


def _base(spec: ImageSpec, request: BuildRequest) -> str:
    if request.base is not None:
        return str(parse_reference(request.base, "--base"))
    reference = parse_reference(spec.base.image, f"profile {spec.name}, base.image")
    return str(replace(reference, digest=spec.base.digest) if spec.base.digest else reference)


def _build_args(spec: ImageSpec, request: BuildRequest) -> tuple[BuildArg, ...]:
    each = f"{spec.build.memory_per_job_gib:g} GiB of memory each"
    return (
        BuildArg(
            name="MAX_JOBS", default=str(request.jobs or ""), why=f"compilers at once; if empty, from cores and {each}"
        ),
        BuildArg(name="NVCC_THREADS", default="1", why="architectures at once in each compiler"),
    )


def _artifacts(spec: ImageSpec, request: BuildRequest) -> tuple[str, ...]:
    if spec.build.system == "vllm" and request.target is None:
        return (f"{PACKAGES}/vllm",)
    return spec.build.artifacts


def _labels(
    spec: ImageSpec, request: BuildRequest, source: Source, arch: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    base = parse_reference(_base(spec, request), "base")
    url, revision = _origin(source)
    labels = {
        "org.opencontainers.image.title": f"vdbg-env {spec.name}",
        "org.opencontainers.image.description": spec.summary,
        "org.opencontainers.image.source": url,
        "org.opencontainers.image.revision": revision,
        "org.opencontainers.image.base.name": base.name_and_tag,
        "org.opencontainers.image.base.digest": base.digest or "",
        "dev.vdbg-env.profile": spec.name,
        "dev.vdbg-env.debug": request.debug,
        "dev.vdbg-env.arch": ";".join(arch),
        "dev.vdbg-env.cuda": spec.toolchain.cuda,
        "dev.vdbg-env.target": request.target or "",
    }
    return tuple((name, value) for name, value in labels.items() if value)


def _origin(source: Source) -> tuple[str, str]:
    match source:
        case Sdist(project=project, version=version):
            return f"pkg:pypi/{project}@{version}", version
        case GitRef(url=url, ref=ref):
            return url, ref
        case LocalTree(revision=revision):
            return "", revision or ""
        case Bundled(name=name):
            return f"bundled:{name}", ""


def _context(system: str, request: BuildRequest, source: Source, library: ImageLibrary) -> tuple[ContextItem, ...]:
    items: list[ContextItem] = [FileBytes(name="entrypoint.sh", data=library.entrypoint, mode=0o755)]
    if request.guard:
        items += [request.guard.wheel, FileBytes(name="vdbg-env", data=library.launcher, mode=0o755)]
    if request.object_cache is not None:
        items.append(FileBytes(name="object-cache.sh", data=library.object_cache, mode=0o755))
    if request.site.ca_bundle is not None:
        items.append(FileBytes(name="site/ca-bundle.crt", data=request.site.ca_bundle))
    items += [TreeOnDisk(name=f"deps/{d.name}", path=d.path, exclude=NOT_DEPENDENCY) for d in request.deps]
    match source:
        case LocalTree(path=path):
            items.append(TreeOnDisk(name="source", path=path, exclude=NOT_SOURCE))
            if system == "vllm":
                lists = ("requirements", "requirements*.txt")
                items.append(TreeOnDisk(name="requirements", path=path, exclude=NOT_SOURCE, only=lists))
        case Bundled(name=name):
            if name not in library.bundled:
                raise BadInput(f"no project is bundled by the name {name!r}", next_step="vdbg-env images list")
            items += [replace(file, name=f"source/{file.name}") for file in library.bundled[name]]
        case Sdist() | GitRef():
            pass
    return tuple(sorted(items, key=lambda item: item.name))


def _architectures(
    spec: ImageSpec, request: BuildRequest, gpu: HostGpu | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the architectures to compile for, and a note unless they were requested: each costs its own hours."""
    if request.arch:
        return request.arch, ()
    if gpu is not None:
        return (gpu.arch,), (f"built for architecture {gpu.arch}, that of this machine's GPU; --arch names another",)
    own = spec.build.arch
    return own, (f"built for architecture {', '.join(own)}, the profile's own; --arch names another",)


def _notes(request: BuildRequest) -> tuple[str, ...]:
    if request.site.ca_bundle is None or request.site.keep_ca:
        return ()
    return ("the site's certificate authority is used by the build and is removed at its end",)


def _other_stack(spec: ImageSpec, request: BuildRequest, vllm: VllmRow | None) -> tuple[str, ...]:
    """Say where a whole vLLM here differs from the release's own image, since a triage would see another stack."""
    if vllm is None or vllm.image is None or request.target:
        return ()
    own, here = vllm.image, (spec.base.python if request.base is None else None, spec.toolchain.cuda)
    there = (own.python, ".".join(own.cuda.split(".")[:2]))
    if here == there or (here[0] is None and here[1] == there[1]):
        return ()
    python = f"Python {here[0]} and " if here[0] else ""
    return (
        f"vLLM {vllm.version}'s own image has Python {own.python} and CUDA {own.cuda}, this one {python}CUDA {here[1]}",
    )


def _other_torch(spec: ImageSpec, vllm: VllmRow | None) -> tuple[str, ...]:
    """Warn where the package index has the release's torch for an older CUDA only, and no other index is named."""
    if vllm is None or vllm.image is None or spec.packages.indexes:
        return ()
    own, here = (int(cuda.split(".")[0]) for cuda in (vllm.image.cuda, spec.toolchain.cuda))
    if own >= here:
        return ()
    return (
        f"vLLM {vllm.version} was released for CUDA {vllm.image.cuda}, and so was its torch {vllm.torch}: what CUDA "
        f"{spec.toolchain.cuda} compiles would load a second CUDA runtime next to torch's; take a profile with CUDA "
        f"{own}, or name an index in `packages.indexes` that has this torch for CUDA {here}",
    )


def _debug_warnings(request: BuildRequest) -> tuple[str, ...]:
    if request.debug != "device-debug":
        return ()
    return (
        "-G turns the device optimiser off: kernels run many times slower, take more registers than a launch may "
        "allow, and races and bad accesses may move or vanish. Use it when --lineinfo has not been enough",
    )
