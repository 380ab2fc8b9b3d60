"""The build plan: what a builder does, in order, as one value that is hashed, recorded, rendered and bundled.

Everything that a plan creates is below one root: `ROOT` in a container, a private folder on a bare machine. Scripts use
"$VDBG_ROOT", values with paths are marked as such, and `environment` and `script` put in the real root.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal

from vdbg_env.common.console import one_line
from vdbg_env.common.errors import BadInput
from vdbg_env.image.context import ROOT, BuildContext, ContextItem, FileBytes, FileOnDisk, TreeOnDisk
from vdbg_env.image.profile import BuildRequest, DebugInfo, Dialect, ImageSpec, Network, Platform, Site

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


# A plan as a Dockerfile: instruction objects first, then one place that quotes them.
#
# Only instructions of every builder are used, unless the dialect allows more (see `Dialect`): no heredocs, no
# `COPY --link`, no `# syntax=` line. In RUN only the shell expands; everywhere else Docker expands `$`: it is escaped
# (by the lexer of BuildKit, frontend/dockerfile/shell/lex.go).


@dataclass(frozen=True, kw_only=True)
class Comment:
    """A line for the reader; `ignore` names hadolint's rules that do not fit the next instruction."""

    text: str
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class From:
    """The base image."""

    image: str
    platform: str | None = None


@dataclass(frozen=True, kw_only=True)
class Arg:
    """A build argument and its default."""

    name: str
    default: str


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """ENV or LABEL with all of its names and values."""

    keyword: str
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Workdir:
    """The folder of the instructions that follow."""

    path: str


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A file or folder of the context."""

    source: str
    target: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """Shell commands, all of which must succeed; `mounts` are BuildKit's."""

    commands: tuple[str, ...]
    mounts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Exec:
    """ENTRYPOINT or CMD as a list of words."""

    keyword: str
    argv: tuple[str, ...]


HADOLINT = {
    "DL3008": "a distribution has one version of each package, so a pinned one disappears with the next",
    "DL3013": "the profile pins what it must, and takes the newest version of the rest",
    "DL3042": "PIP_NO_CACHE_DIR turns the cache off, or a mount keeps it out of the image",
}
WIDTH = 110  # of a line of shell, roughly: a single long word is never broken

Instruction = Comment | From | Arg | Pairs | Workdir | Copy | Run | Exec


def dockerfile(plan: BuildPlan, dialect: Dialect = "classic") -> str:
    """Return the Dockerfile of a plan.

    Raises BadInput when the plan reads secrets and the dialect has no way to keep them out of a layer.
    """
    lines: list[str] = []
    before: Instruction = Comment(text="")
    for instruction in instructions(plan, dialect):
        if isinstance(instruction, Comment) and not isinstance(before, Comment):
            lines.append("")
        lines.append(_text(instruction))
        before = instruction
    return "\n".join([*lines, ""])


def build_context(plan: BuildPlan, dialect: Dialect = "classic", *more: ContextItem) -> BuildContext:
    """Return what a builder is sent: the plan's context, its Dockerfile and `more` files."""
    file = FileBytes(name="Dockerfile", data=dockerfile(plan, dialect).encode())
    return BuildContext(items=(*plan.context, file, *more))


def step_titles(plan: BuildPlan, dialect: Dialect) -> tuple[str, ...]:
    """Return a title for each instruction that makes a layer, in the order in which BuildKit numbers them."""
    titles = []
    title = ""
    for instruction in instructions(plan, dialect):
        match instruction:
            case Comment(text=text):
                title = text or title
            case From(image=image):
                titles.append(f"Base image {image}")
            case Workdir(path=path):
                titles.append(f"Work in {path}")
            case Copy() | Run():
                titles.append(title)
            case _:
                pass
    return tuple(titles)


def instructions(plan: BuildPlan, dialect: Dialect) -> Iterator[Instruction]:
    """Yield the instructions of a plan, in order."""
    yield Comment(text=f"Rendered by vdbg-env from the profile {plan.profile}; the same plan gives the same bytes.")
    yield Comment(
        text="docker build --tag NAME DIR builds it, where DIR is the folder of this file and its context; then"
    )
    yield Comment(text="vdbg-env verify NAME proves the line info, as vdbg-env build does before it gives a name.")
    for rule, reason in HADOLINT.items():
        yield Comment(text=f"hadolint's {rule} is ignored below: {reason}.")
    yield from _base(plan)
    late = plan.late_env
    yield Pairs(keyword="ENV", pairs=tuple(pair for pair in plan.environment().items() if pair not in late))
    workdir, arguments = "", plan.args
    for step in plan.steps:
        if isinstance(step, CopyStep):
            yield Comment(text=step.title)
            yield Copy(source=step.source, target=f"{ROOT}/{step.target}")
            continue
        folder = ROOT if step.cwd == "." else f"{ROOT}/{step.cwd}"
        if folder != workdir:
            workdir = folder
            yield Workdir(path=folder)
        if step.phase != "prepare" and late:
            yield Comment(text="From here on everything depends on the architecture and the kind of debug information.")
            yield Pairs(keyword="ENV", pairs=late)
            late = ()
        if step.phase == "compile" and arguments:
            yield from _arguments(arguments)
            arguments = ()
        yield Comment(text=step.title, ignore=_hadolint(step))
        yield _run(step, dialect)
    if workdir != ROOT:
        yield Workdir(path=ROOT)
    yield Exec(keyword="ENTRYPOINT", argv=plan.entrypoint)
    yield Exec(keyword="CMD", argv=plan.command)
    # Last: a label that changes then costs no layer.
    yield Pairs(keyword="LABEL", pairs=(*plan.labels, (LABEL_DIGEST, plan.digest)))


def _arguments(arguments: tuple[BuildArg, ...]) -> Iterator[Instruction]:
    """Declare the arguments as late as possible: every RUN after one runs again when its value changes."""
    for arg in arguments:
        yield Comment(text=f"{arg.name}: {arg.why}; --build-arg sets it")
        yield Arg(name=arg.name, default=arg.default)


def _base(plan: BuildPlan) -> Iterator[Instruction]:
    if plan.platform is None:
        yield From(image=plan.base)
        return
    yield Comment(text="The requested platform; a builder of another one would silently use its own.")
    yield Comment(text="", ignore=("DL3029",))
    yield From(image=plan.base, platform=plan.platform)


def _hadolint(step: CommandStep) -> tuple[str, ...]:
    """Return the rules that a step breaks on purpose."""
    commands = "\n".join(step.commands)
    marks = {"DL3008": r"\bapt-get\b", "DL3013": r"\bpip .*\binstall\b", "DL3042": r"\bpip .*\binstall\b"}
    return tuple(rule for rule, mark in marks.items() if re.search(mark, commands))


def _run(step: CommandStep, dialect: Dialect) -> Run:
    exports = [f"{variable.name}={shell_word(variable)}" for variable in step.env]
    mounts: list[str] = []
    if step.cache == "pip" and dialect == "buildkit":
        mounts.append("type=cache,target=/root/.cache/pip")
    elif step.cache == "pip":
        exports.insert(0, "PIP_NO_CACHE_DIR=1")
    if step.objects is not None:
        mounts.append(_objects(step.objects, dialect))
    for use in step.secrets:
        mounts.append(_secret(use, dialect))
        if use.variable:
            exports.append(f"{use.variable}={shlex.quote(use.target)}")
    first = (f"export {' '.join(exports)}",) if exports else ()
    return Run(commands=(*first, *step.commands), mounts=tuple(mounts))


def _secret(use: SecretUse, dialect: Dialect) -> str:
    if dialect != "buildkit":
        raise BadInput(
            f"the secret {use.id!r} cannot be kept out of the image by this builder",
            cause="the dialect `classic`, for builders of every kind, has no RUN --mount=type=secret",
            next_step="install docker-buildx, or render with --dialect buildkit",
        )
    return f"type=secret,id={use.id},target={use.target}"


def _objects(name: str, dialect: Dialect) -> str:
    if dialect != "buildkit":
        raise BadInput(
            "this builder keeps no compiled objects between builds",
            cause="the dialect `classic`, for builders of every kind, has no RUN --mount=type=cache",
            next_step="build with --engine buildx or buildkit, or render with --dialect buildkit",
        )
    return f"type=cache,id=vdbg-objects-{name},target={ROOT}/{OBJECTS}"


def _text(instruction: Instruction) -> str:
    match instruction:
        case Comment(text="", ignore=rules):
            return f"# hadolint ignore={','.join(rules)}"
        case Comment(text=text, ignore=rules):
            head = f"# {one_line(text, 'a comment')}"
            return f"{head}\n# hadolint ignore={','.join(rules)}" if rules else head
        case From(image=image, platform=platform):
            option = f"--platform={platform} " if platform else ""
            return f"FROM {option}{one_line(image, 'the base image')}"
        case Arg(name=name, default=default):
            return f"ARG {name}={quoted(default, name)}"
        case Pairs(keyword=keyword, pairs=pairs):
            return f"{keyword} " + " \\\n    ".join(f"{name}={quoted(value, name)}" for name, value in pairs)
        case Workdir(path=path):
            return f"WORKDIR {path}"
        case Copy(source=source, target=target):
            return f"COPY {json.dumps([source, target])}"
        case Run(commands=commands, mounts=mounts):
            options = "".join(f"--mount={mount} \\\n    " for mount in mounts)
            # `set -e` and not `&&`: a `||` within a command would then apply to all commands before it.
            return f"RUN {options}set -eu; \\\n    " + "; \\\n    ".join(_wrapped(command) for command in commands)
        case Exec(keyword=keyword, argv=argv):
            return f"{keyword} {json.dumps(argv)}"


def _wrapped(command: str) -> str:
    """Break a command into lines: where its template does, and a long one at blanks outside of quotes.

    There a continuation changes nothing, within `$( )` or without.
    """
    return " \\\n    ".join(_broken(one_line(part.rstrip(), "a command")) for part in command.split("\\\n"))


def _broken(text: str) -> str:
    lines, start, blank, quote = [], 0, 0, ""
    for position, character in enumerate(f"{text} "):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character == " ":
            if position - start > WIDTH and text[start:blank].strip():
                lines.append(text[start:blank])
                start = blank + 1
            blank = position
    return " \\\n      ".join([*lines, text[start:]])


def quoted(value: str, what: str) -> str:
    """Return a value in double quotes as Docker's lexer reads them: `\\`, `"` and `$` are escaped, nothing else is."""
    escaped = one_line(value, what).replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{escaped}"'
