"""The build plan: what a builder does, in order, as one value that is hashed, recorded, rendered and bundled.

Everything that a plan creates is below one root: `ROOT` in a container, a private folder on a bare machine. Scripts use
"$VDBG_ROOT", values with paths are marked as such, and `environment` and `script` put in the real root.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from vdbg_env.common.console import one_line
from vdbg_env.common.errors import BadInput
from vdbg_env.image.context import ROOT, ContextItem, FileBytes, FileOnDisk, TreeOnDisk
from vdbg_env.image.profile import BuildRequest, DebugInfo, ImageSpec, Network, Platform, Site

ROOT_VARIABLE = "VDBG_ROOT"
LABEL_DIGEST = "dev.vdbg-env.plan.digest"
LABEL_PROOF = "dev.vdbg-env.proof"
LABEL_BUILT = "dev.vdbg-env.built"
"""The files and folders that the build made, which the proof is of: a JSON list of paths."""
LABEL_LAYERS = "dev.vdbg-env.layers"
"""The layers that the labels are of: an image that others build over it inherits the labels, and has more layers."""
OBJECTS = "objects"
"""The folder below the root where a builder shows the objects that it keeps between builds."""


@dataclass(frozen=True, kw_only=True)
class Variable:
    """One environment variable.

    `text` is used as is. `path` is relative to the root. `search` is a list of paths relative to the root, put before
    the previous value: the base image's in a container, the machine's on a bare machine. With `late` it is set after
    the steps that do not need it, which then need not run again when it changes.
    """

    name: str
    value: str | tuple[str, ...]
    kind: Literal["text", "path", "search"] = "text"
    late: bool = False

    def at(self, root: str, held: str = "") -> str:
        """Return the value for a root, given the previous value `held`."""
        match self.value:
            case str():
                return f"{root}/{self.value}" if self.kind == "path" else self.value
            case _:
                return ":".join((*(f"{root}/{entry}" for entry in self.value), *filter(None, [held])))


@dataclass(frozen=True, kw_only=True)
class SecretUse:
    """A secret that a step may read: a file at `target`, whose path is in `variable` if programs need that."""

    id: str
    target: str
    variable: str | None = None


@dataclass(frozen=True, kw_only=True)
class CopyStep:
    """Copies `source` of the context to `target` below the root."""

    id: str
    title: str
    source: str
    target: str


@dataclass(frozen=True, kw_only=True)
class CommandStep:
    """Runs commands in the folder `cwd` below the root, each a logical line of POSIX shell; the first failure ends it.

    `env` is for this step only. `network` says that the step fetches something. `where` is "container" for steps that
    change the system (apt): a bare machine skips them and must have `needs`, the programs they would have installed.
    `phase` "fetch" needs the late variables and the network, "compile" neither network nor secrets. `cache` names a
    folder that a builder keeps between builds if it can: "pip" for downloads, "objects:NAME" for the compiled objects
    of `--object-cache NAME`, at `OBJECTS`.
    """

    id: str
    title: str
    commands: tuple[str, ...]
    env: tuple[Variable, ...] = ()
    cwd: str = "."
    network: bool = False
    where: Literal["anywhere", "container"] = "anywhere"
    needs: tuple[str, ...] = ()
    phase: Literal["prepare", "fetch", "compile", "check"] = "prepare"
    secrets: tuple[SecretUse, ...] = ()
    cache: str | None = None

    @property
    def objects(self) -> str | None:
        """Return the name of the cache of compiled objects, for a step that keeps them."""
        kind, _, name = (self.cache or "").partition(":")
        return name if kind == "objects" else None

    def script(self) -> str:
        """Return the whole step as one POSIX shell script; VDBG_ROOT must be in its environment."""
        exports = [f"export {v.name}={shell_word(v)}" for v in self.env]
        return "\n".join(["set -eu", *exports, *self.commands, ""])


Step = CopyStep | CommandStep


@dataclass(frozen=True, kw_only=True)
class BuildArg:
    """A build argument with its default; its value is the machine's own and not in the plan's digest."""

    name: str
    default: str
    why: str


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """One build, fully decided.

    `base` is an image reference, with its digest if known; `base_path` its PATH. `env` is set in the image for builds
    and runs. `artifacts` are the folders and files below the root in which every cubin must be proven to carry line
    info before the image is tagged. `context` is what the COPY steps take; it is not in `document`, but in the digest:
    bytes, the digests of trees, and files on disk by name only. The digest leaves out `notes` and `warnings`.
    """

    profile: str
    base: str
    base_path: str
    platform: Platform | None
    network: Network
    args: tuple[BuildArg, ...]
    env: tuple[Variable, ...]
    labels: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...]
    artifacts: tuple[str, ...]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    arch: tuple[str, ...] = ()
    memory_per_job_gib: float = 5.0
    context: tuple[ContextItem, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def document(self) -> dict[str, object]:
        """Return the plan as plain values for JSON, without the bytes of the context."""
        fields = asdict(replace(self, context=()))
        del fields["context"]
        return {"schema": "vdbg-env/plan/v1", **fields}

    @property
    def late_env(self) -> tuple[tuple[str, str], ...]:
        """Return the variables that are set in a container once everything that does not need them is there."""
        return tuple((v.name, v.at(ROOT)) for v in self.env if v.late)

    @property
    def digest(self) -> str:
        """Return "sha256:..." over the plan and the bytes it brings, which identifies a build."""
        document = {**self.document(), "args": [arg.name for arg in self.args], "notes": (), "warnings": ()}
        hashed = hashlib.sha256(json.dumps(document, sort_keys=True, ensure_ascii=True).encode())
        for item in self.context:
            data = _known_content(item)
            hashed.update(f"\0{item.name}\0{len(data)}\0".encode("utf-8", "surrogateescape") + data)
        return f"sha256:{hashed.hexdigest()}"

    def with_contents(self, read: Callable[[TreeOnDisk], str]) -> BuildPlan:
        """Return the plan with the digest that `read` gives for each tree, so a change to one changes the plan's."""
        context = (replace(i, digest=read(i)) if isinstance(i, TreeOnDisk) else i for i in self.context)
        return replace(self, context=tuple(context))

    def environment(self, root: str = ROOT, held: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the plan's environment for a root; `held` are previous values, by default the base image's PATH."""
        before = {"PATH": self.base_path} if held is None else held
        values = {v.name: v.at(root, before.get(v.name, "")) for v in self.env}
        return {ROOT_VARIABLE: root, **values}

    def split_before_compile(self, image: str) -> tuple[BuildPlan, BuildPlan]:
        """Split into a plan that fetches everything and one that compiles, based on the image of the first.

        The second runs without network. `image` is the name that the result of the first will have.
        """
        first = next(i for i, s in enumerate(self.steps) if isinstance(s, CommandStep) and s.phase == "compile")
        while first and isinstance(self.steps[first - 1], CopyStep):
            first -= 1
        fetch = replace(self, steps=self.steps[:first], artifacts=(), context=self._brought_by(self.steps[:first]))
        rest = self.steps[first:]
        return fetch, replace(self, base=image, steps=rest, network="none", context=self._brought_by(rest))

    def _brought_by(self, steps: tuple[Step, ...]) -> tuple[ContextItem, ...]:
        sources = {step.source for step in steps if isinstance(step, CopyStep)}
        return tuple(item for item in self.context if any(f"{item.name}/".startswith(f"{s}/") for s in sources))


def _known_content(item: ContextItem) -> bytes:
    match item:
        case FileBytes(data=data):
            return data
        case TreeOnDisk(digest=digest):
            return digest.encode()
        case FileOnDisk():
            return b""


def shell_word(variable: Variable) -> str:
    """Return a variable's value as one word of POSIX shell.

    Raises BadInput for control characters: a backslash before a line break would continue the line of a Dockerfile,
    even inside quotes.
    """
    match variable.kind, variable.value:
        case "text", str(value):
            return _quoted(variable, value)
        case "path", str(value):
            return f'"${ROOT_VARIABLE}"/{_quoted(variable, value)}'
        case _:
            entries = [f'"${ROOT_VARIABLE}"/{_quoted(variable, entry)}' for entry in variable.value]
            held = f'"${{{variable.name}:+:${variable.name}}}"'
            return ":".join(entries) + held


def _quoted(variable: Variable, text: str) -> str:
    return shlex.quote(one_line(text, f"the value of {variable.name}"))


# The environment of a debug image: it makes compilers write line info, and keeps caches from removing it.


FLAG: dict[DebugInfo, str] = {"lineinfo": "-lineinfo", "device-debug": "-G"}

# A launcher named in the environment would put a cache in front of the compiler, and a precompiled wheel would leave
# nothing to compile at all.
UNSET_FOR_COMPILE = (
    "CMAKE_C_COMPILER_LAUNCHER",
    "CMAKE_CXX_COMPILER_LAUNCHER",
    "CMAKE_CUDA_COMPILER_LAUNCHER",
    "CCACHE_PREFIX",
    "RUSTC_WRAPPER",
    "VLLM_USE_PRECOMPILED",
    "VLLM_PRECOMPILED_WHEEL_LOCATION",
)
NO_LAUNCHER = tuple(f"-DCMAKE_{language}_COMPILER_LAUNCHER=" for language in ("C", "CXX", "CUDA"))


def image_environment(spec: ImageSpec, request: BuildRequest, arch: tuple[str, ...]) -> tuple[Variable, ...]:
    """Return what is set in the image for builds and runs: ours, overridden by the profile's."""
    ours = {v.name: v for v in (*_toolchain(spec), *_line_info(request.debug, arch))}
    profile = {
        name: Variable(name=name, value=value, late=name in ours and ours[name].late)
        for name, value in sorted(spec.environment.items())
        if value is not None
    }
    kept = (v for v in ours.values() if v.name not in spec.environment)
    return (*kept, *profile.values())


def overridden(spec: ImageSpec) -> tuple[str, ...]:
    """Return a warning for each setting of the profile that changes or loses what the build relies on."""
    guards = {"CCACHE_DISABLE", "VLLM_DISABLE_SCCACHE", "NVCC_PREPEND_FLAGS", "CMAKE_ARGS"}
    lost = [f"the profile overrides {name}" for name in sorted(guards & set(spec.environment))]
    lost += [f"the profile passes {a}" for a in spec.build.cmake_args if "LAUNCHER=" in a or "CUDA_FLAGS=" in a]
    ours = [
        f"the profile overrides {name}" for name in sorted({"PATH", "CUDA_HOME", "VDBG_ROOT"} & set(spec.environment))
    ]
    unset = (
        f"the profile sets {name}, which the compile step unsets: with it, nothing or not all would be compiled here"
        for name in UNSET_FOR_COMPILE
        if spec.environment.get(name)
    )
    return (
        *(f"{what}: a cache may return objects without line info, which the proof will find" for what in lost),
        *(f"{what}: compilers and tools are then looked for there and nowhere else" for what in ours),
        *unset,
    )


def _toolchain(spec: ImageSpec) -> tuple[Variable, ...]:
    built = ("out/bin",) if spec.build.system == "cmake" else ()
    path = (*built, "venv/bin", *(("cuda/bin",) if spec.toolchain.provided_by == "wheels" else ()))
    if spec.toolchain.provided_by == "wheels":
        home = Variable(name="CUDA_HOME", value="cuda", kind="path")
    else:
        home = Variable(name="CUDA_HOME", value=spec.toolchain.home)
    return (Variable(name="PATH", value=path, kind="search"), home)


def _line_info(debug: DebugInfo, arch: tuple[str, ...]) -> tuple[Variable, ...]:
    values = {
        # Every nvcc reads this, also for kernels compiled at run time; ccache does not hash it, hence the next one.
        "NVCC_PREPEND_FLAGS": FLAG[debug],
        "CCACHE_DISABLE": "1",
        # vLLM prefers sccache to ccache where both are found, and sccache ignores CCACHE_DISABLE.
        "VLLM_DISABLE_SCCACHE": "1",
        "TORCH_CUDA_ARCH_LIST": ";".join(arch),
        # Kernels compiled at run time, each by its own switch. FLASHINFER_JIT_DEBUG is not set: it turns the optimiser
        # off, and many bugs vanish with it.
        "FLASHINFER_JIT_LINEINFO": "1",
        "CUTE_DSL_LINEINFO": "1",
        "TRITON_DISABLE_LINE_INFO": "0",
    }
    return tuple(Variable(name=name, value=value, late=True) for name, value in values.items())


# How many compilers may run at once, from cores and memory.


GIB = 1 << 30
MOST_JOBS = 4096


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a build may use: logical cores, and free memory in bytes."""

    cores: int
    free_memory: int


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """The two numbers of a build, how they were calculated, and a warning where the user overrode them.

    vLLM runs MAX_JOBS // NVCC_THREADS compilers, each compiling NVCC_THREADS architectures at once, so the first
    number bounds the memory.
    """

    max_jobs: int
    nvcc_threads: int
    sum: str
    warning: str | None = None


def parallelism(
    machine: Machine, *, architectures: int, gib_per_job: float, requested: int | None = None
) -> Parallelism:
    """Divide cores and memory among compilers; `requested` overrides the result, with a warning when memory is short.

    Raises BadInput for a number of jobs out of range.
    """
    if requested is not None and not 1 <= requested <= MOST_JOBS:
        raise BadInput(
            f"--jobs {requested} is not between 1 and {MOST_JOBS}", next_step="leave --jobs out to have it calculated"
        )
    fit = int(machine.free_memory / (gib_per_job * GIB))
    able = max(1, min(machine.cores, fit))
    free = machine.free_memory / GIB
    text = f"min({machine.cores} cores, {free:.1f} GiB free / {gib_per_job:g} GiB a job = {fit}) = {able}"
    if fit < 1:
        text += ", at least 1"
    jobs = able if requested is None else requested
    warning = None
    if requested is not None and requested > max(1, fit):
        warning = (
            f"--jobs {requested} may need {requested * gib_per_job:g} GiB and {free:.1f} GiB are free: expect exit 137"
        )
    elif fit < 1:
        warning = f"one compiler may need {gib_per_job:g} GiB and {free:.1f} GiB are free: expect exit 137"
    # More threads than architectures would idle; more than jobs would leave no compiler.
    threads = max(1, min(architectures, jobs))
    return Parallelism(max_jobs=jobs, nvcc_threads=threads, sum=text, warning=warning)


# The values of a build from this machine and this site; they are not in the plan or its digest.


def build_args(parallelism: Parallelism, site: Site) -> dict[str, str]:
    """Return name -> value of the plan's arguments and of the proxies, which builders predefine without an ARG line.

    A proxy's address may contain a password: as a predefined argument it reaches the steps, but no layer or history.
    """
    return {
        "MAX_JOBS": str(parallelism.max_jobs),
        "NVCC_THREADS": str(parallelism.nvcc_threads),
        **dict(sorted(site.proxies.items())),
    }


# What an air-gapped site gets of a plan: its half without network, and the image that its other half has made.


SCHEMA = "vdbg-env/bundle/v1"


class Brought(BaseModel):
    """One item of the build context: its name in the archive, and how the plan counts it in its digest."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    kind: Literal["file", "tree"]
    mode: int = 0o644
    digest: str = ""


class Manifest(BaseModel):
    """The description of a bundle: the plan to build, the image that it starts from, and the context next to it.

    `layers` identifies the image by its content, whatever store it is loaded into.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, title=SCHEMA, serialize_by_alias=True)

    form: Literal["vdbg-env/bundle/v1"] = Field(default="vdbg-env/bundle/v1", alias="schema")
    made_by: str
    image: str
    layers: str
    tag: str
    plan_digest: str
    plan: dict[str, object]
    context: tuple[Brought, ...]

    def text(self) -> str:
        """Return the manifest as JSON."""
        return self.model_dump_json(indent=2) + "\n"


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A bundle at its site: the manifest, the files of its context, and the folder with its trees, unpacked."""

    manifest: Manifest
    files: Mapping[str, bytes]
    folder: str

    def plan(self, read: Callable[[TreeOnDisk], str]) -> BuildPlan:
        """Return the plan with its context, where `read` gives the digest of a tree as it was unpacked.

        Raises BadInput unless the plan's digest is that of the plan that was bundled, and for a plan on another image
        or with a network: what is in a bundle is trusted with neither.
        """
        items = tuple(self._item(item) for item in self.manifest.context)
        try:
            plan = replace(_plans().validate_python(self.manifest.plan), context=items).with_contents(read)
        except ValidationError as error:
            raise BadInput(
                f"the plan in the bundle cannot be read: {error.errors()[0]['msg']}",
                cause="another release of vdbg-env made it, or the file is damaged",
                next_step=f"use vdbg-env {self.manifest.made_by} here, or make the bundle again",
            ) from None
        if plan.digest != self.manifest.plan_digest:
            raise BadInput(
                "the plan in the bundle is not the one that was bundled: its digest differs",
                cause="the file was changed or damaged on its way",
                next_step="compare its sha256 on both sides, and copy it again",
            )
        if plan.base != self.manifest.image or plan.network != "none":
            raise BadInput(
                f"the plan in the bundle starts from {plan.base} with network {plan.network}",
                cause="`vdbg-env bundle` makes none that does not start from its own image without network",
                next_step="ask who made it; nothing of it was loaded",
            )
        return plan

    def _item(self, item: Brought) -> ContextItem:
        if item.kind == "tree":
            return TreeOnDisk(name=item.name, path=f"{self.folder}/{item.name}", digest=item.digest)
        data = self.files.get(item.name)
        if data is None:
            raise BadInput(f"the bundle lacks {item.name}", cause="it was cut off", next_step="copy it again")
        return FileBytes(name=item.name, data=data, mode=item.mode)


def describe_bundle(plan: BuildPlan, *, layers: str, tag: str, made_by: str) -> Manifest:
    """Return the manifest of a plan whose base is the image that comes with it."""
    document = plan.document()
    del document["schema"]
    return Manifest(
        made_by=made_by, image=plan.base, layers=layers, tag=tag, plan_digest=plan.digest, plan=document,
        context=tuple(_brought(item) for item in plan.context),
    )  # fmt: skip


def read_manifest(text: bytes) -> Manifest:
    """Return the manifest; raises BadInput for one of another form."""
    try:
        document = json.loads(text)
        if document.get("schema") != SCHEMA:
            raise BadInput(
                f"the bundle says {document.get('schema')!r} and not {SCHEMA!r}", next_step="update vdbg-env"
            )
        return Manifest.model_validate(document)
    except (ValueError, AttributeError) as error:
        raise BadInput(
            f"the bundle's manifest cannot be read: {error}", cause="the file is damaged", next_step="copy it again"
        ) from None


def _brought(item: ContextItem) -> Brought:
    match item:
        case FileBytes(name=name, mode=mode):
            return Brought(name=name, kind="file", mode=mode)
        case TreeOnDisk(name=name, digest=digest):
            return Brought(name=name, kind="tree", digest=digest)
        case FileOnDisk(name=name):
            raise BadInput(f"{name} cannot be bundled: only its name is in the plan's digest")


@cache
def _plans() -> TypeAdapter[BuildPlan]:
    return TypeAdapter(BuildPlan)
