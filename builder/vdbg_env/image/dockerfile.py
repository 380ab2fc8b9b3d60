"""Write a plan as a Dockerfile: instruction objects first, then one place that quotes them.

Only instructions of every builder are used, unless the dialect allows more (see `Dialect`): no heredocs, no
`COPY --link`, no `# syntax=` line. In RUN only the shell expands; everywhere else Docker expands `$`, which is escaped
(by the lexer of BuildKit, frontend/dockerfile/shell/lex.go).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from vdbg_env.common.console import one_line
from vdbg_env.common.errors import BadInput
from vdbg_env.image.context import ROOT, BuildContext, ContextItem, FileBytes
from vdbg_env.image.plan import LABEL_DIGEST, OBJECTS, BuildArg, BuildPlan, CommandStep, CopyStep, SecretUse
from vdbg_env.image.plan import shell_word as variable_word
from vdbg_env.image.profile import Dialect


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
    exports = [f"{variable.name}={variable_word(variable)}" for variable in step.env]
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
