"""The build plan: what a builder does, in order, as one value that is hashed, recorded and rendered.

Everything that a plan creates is below one root: `ROOT` in a container, a private folder on a bare machine. Scripts use
"$VDBG_ROOT", values with paths are marked as such, and `environment` and `script` put in the real root.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal

from vdbg_env.image.context import ContextItem, FileBytes, FileOnDisk, TreeOnDisk
from vdbg_env.image.profile.request import Network, Platform
from vdbg_env.image.text import one_line

ROOT = "/opt/vdbg"
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
