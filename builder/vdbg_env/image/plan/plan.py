"""The build plan: what an engine does, in order, as one value that is hashed, recorded and rendered.

Everything a plan makes lies below one root, so that the same plan runs in a container, where the root is `ROOT`, and
on a bare machine without any container, where it is a private folder. Scripts say "$VDBG_ROOT", values that hold paths
are marked as such, and `environment` and `script` put the real root in.
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


@dataclass(frozen=True, kw_only=True)
class Variable:
    """One environment variable.

    `text` is taken as it is. `path` is relative to the root. `search` is a list of paths relative to the root, put
    before whatever the variable held: the base image's own value in a container, the machine's on a bare machine.
    """

    name: str
    value: str | tuple[str, ...]
    kind: Literal["text", "path", "search"] = "text"

    def at(self, root: str, held: str = "") -> str:
        """Return the value for a root and what the variable held before."""
        match self.value:
            case str():
                return f"{root}/{self.value}" if self.kind == "path" else self.value
            case _:
                return ":".join((*(f"{root}/{entry}" for entry in self.value), *filter(None, [held])))


@dataclass(frozen=True, kw_only=True)
class SecretUse:
    """A secret a step may read: a file at `target`, told to programs through `variable` where they ask for one."""

    id: str
    target: str
    variable: str | None = None


@dataclass(frozen=True, kw_only=True)
class CopyStep:
    """Puts `source` of the context at `target` below the root."""

    id: str
    title: str
    source: str
    target: str


@dataclass(frozen=True, kw_only=True)
class RunStep:
    """Runs commands in the folder `cwd` below the root, each a logical line of POSIX shell; the first failure ends it.

    `env` holds for this step alone. `network` says that the step fetches something. `where` is "container" for steps
    that change the system (apt): a bare machine skips them and must have `needs`, the programs they would have brought.
    `cache` names a folder of downloads an engine may keep between builds; compiled objects are never among them.
    """

    id: str
    title: str
    commands: tuple[str, ...]
    env: tuple[Variable, ...] = ()
    cwd: str = "."
    network: bool = False
    where: Literal["anywhere", "container"] = "anywhere"
    needs: tuple[str, ...] = ()
    phase: Literal["prepare", "compile", "check"] = "prepare"
    secrets: tuple[SecretUse, ...] = ()
    cache: str | None = None

    def script(self) -> str:
        """Return the whole step as one POSIX shell script; VDBG_ROOT must be in its environment."""
        exports = [f"export {v.name}={shell_word(v)}" for v in self.env]
        return "\n".join(["set -eu", *exports, *self.commands, ""])


Step = CopyStep | RunStep


@dataclass(frozen=True, kw_only=True)
class BuildArg:
    """A build argument with its default; the value in use comes from the machine and is not in the plan's digest."""

    name: str
    default: str
    why: str


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """One build, fully decided.

    `base` is an image reference, by digest where one is known; `base_path` what its PATH holds. `env` is set in the
    image for builds and runs alike. `artifacts` are the folders and files below the root whose every cubin must be
    proven to carry line info before the image is tagged. `context` is what the COPY steps take; it is no part of
    `document`. Its bytes at hand and what is known of its trees are part of the digest; files on disk count by their
    names only. `notes` and `warnings` are shown to the user before the build starts.
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
    def digest(self) -> str:
        """Return "sha256:..." over the plan and the bytes it brings, which identifies a build."""
        document = {**self.document(), "args": [arg.name for arg in self.args], "notes": (), "warnings": ()}
        hashed = hashlib.sha256(json.dumps(document, sort_keys=True, ensure_ascii=True).encode())
        for item in self.context:
            data = _known_content(item)
            hashed.update(f"\0{item.name}\0{len(data)}\0".encode("utf-8", "surrogateescape") + data)
        return f"sha256:{hashed.hexdigest()}"

    def with_contents(self, read: Callable[[TreeOnDisk], str]) -> BuildPlan:
        """Return the plan with the digest that `read` gives of each tree it brings, so that a change to one counts."""
        context = (replace(i, digest=read(i)) if isinstance(i, TreeOnDisk) else i for i in self.context)
        return replace(self, context=tuple(context))

    def environment(self, root: str = ROOT, held: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the plan's environment for a root; `held` is what was set before, by default the base image's PATH."""
        before = {"PATH": self.base_path} if held is None else held
        values = {v.name: v.at(root, before.get(v.name, "")) for v in self.env}
        return {ROOT_VARIABLE: root, **values}

    def split_before_compile(self, image: str) -> tuple[BuildPlan, BuildPlan]:
        """Split into the plan that fetches everything and the one that compiles, based on the image the first makes.

        The second needs no network: its steps fetch nothing. `image` is the name the first one's result will have.
        """
        first = next(i for i, s in enumerate(self.steps) if isinstance(s, RunStep) and s.phase == "compile")
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

    Raises BadInput for control characters: a backslash before a line break would go on in the next line of a
    Dockerfile even inside quotes.
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
