"""Turn a runbook file into a runbook: shared steps taken in, limits inherited, each part with where it was written."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from vdbg_env.common.console import nearest
from vdbg_env.common.errors import BadInput, VdbgError
from vdbg_env.common.yaml_source import Complaint, Path, Value, YamlSource, read, validate
from vdbg_env.runbook.model import (
    Catalogue,
    Command,
    Input,
    KillPolicy,
    Manual,
    ManualFields,
    Matcher,
    Metadata,
    Outcome,
    OutputPolicy,
    Part,
    Placement,
    Requires,
    Run,
    Runbook,
    RunbookFile,
    RunFields,
    ServerDriver,
    SharedStep,
    Spec,
    Step,
    StepFile,
    Uses,
    UsesFields,
    Watch,
    is_name,
)

_WORD = re.compile(r"\w+|\S")
_REACH = 60  # lines after its start in which a folded or literal text is searched


@dataclass(frozen=True, kw_only=True)
class Places:
    """A runbook's source, and which paths of it were borrowed from the sources of shared steps."""

    source: YamlSource
    borrowed: Mapping[Path, tuple[YamlSource, Path]] = field(default_factory=dict)

    def complaint(self, path: Path, what: str, *, key: bool = False, suggestion: str | None = None) -> Complaint:
        """Make a complaint about the value at `path` (or its key), in the file where it was written."""
        source, path = self._origin(path)
        return source.complaint(path, what, key=key, suggestion=suggestion)

    def written(self, path: Path) -> bool:
        """Say whether there is a value written at exactly this path."""
        source, path = self._origin(path)
        return path in source.places

    def inside(self, path: Path, text: str, offset: int, what: str, suggestion: str | None = None) -> Complaint:
        """Make a complaint about the character at `offset` of the text at `path`.

        Quotes, escapes and folding make a text's columns differ from the file's, so the word at the offset is looked
        up in the file: as many occurrences from the start of the text as it has before the offset.
        """
        source, path = self._origin(path)
        complaint = source.complaint(path, what, suggestion=suggestion)
        word = _WORD.match(text, min(offset, max(0, len(text) - 1)))
        if not word:
            return complaint
        wanted = sum(m.start() < offset for m in re.finditer(re.escape(word[0]), text))
        line, column = complaint.line, complaint.column - 1
        for number in range(line, min(len(source.text), line + _REACH) + 1):
            excerpt = source.text[number - 1]
            for found in re.finditer(re.escape(word[0]), excerpt[column:]):
                if wanted == 0:
                    return replace(complaint, line=number, column=column + found.start() + 1, excerpt=excerpt)
                wanted -= 1
            column = 0
        return complaint

    def _origin(self, path: Path) -> tuple[YamlSource, Path]:
        for length in range(len(path) if self.borrowed else 0, 0, -1):
            if path[:length] in self.borrowed:
                source, prefix = self.borrowed[path[:length]]
                return source, (*prefix, *path[length:])
        return self.source, path


# A runbook to start from: short, commented, and right as it is.


_TEXT = """\
# yaml-language-server: $schema={schema}
apiVersion: vdbg-env/v1
kind: Runbook
metadata:
  name: {name}  # also the name of this file
  title: What fails, in a few words
spec:
  inputs:
    argv: {{type: array, required: true, description: "The workload: the words after --"}}
    request: {{type: path, description: "Recorded requests (JSON lines) for a server; give them with -i request=FILE"}}
    url: {{type: string, default: "http://127.0.0.1:8000"}}
  matchers:
    failure: {{regex: 'illegal memory access'}}  # how the log looks when it fails
  commands:
    workload:
      argv: "${{{{ inputs.argv }}}}"
      # A server gets the recorded requests once it is ready; without any, the command runs until it ends.
      driver: {{replay: "${{{{ inputs.request }}}}", ready: {{http: "${{{{ inputs.url }}}}/health", timeout: 20m}}}}
      timeout: 40m
  steps:
    - id: baseline
      name: Does it fail unchanged?
      run: workload
      repeat: {{count: 3, until: has(matched.failure)}}
      outcomes:  # the first whose 'when' holds is taken; the last has none
        - reproduced: {{when: has(matched.failure), next: blocking}}
        - not_reproduced: {{when: ended.clean, next: end}}
        - unresolved: {{next: end}}

    # A step changes what it names and nothing else: each starts from the command as given.
    - id: blocking
      name: Does it fail with synchronous launches?
      run: workload
      env: {{CUDA_LAUNCH_BLOCKING: "1"}}
      outcomes:
        - reproduced:
            when: has(matched.failure)
            rule: EXAMPLE1
            level: warning
            message: "it fails at the launch that is named: ${{{{ matched.failure.text }}}}"
            next: report
        - unresolved: {{next: report}}

    - id: report
      from: report  # a shared step: vdbg-env runbooks explain report
"""


def skeleton(name: str, schema: str) -> str:
    """Return the text of a new runbook; `schema` is the file or URL of the JSON Schema, for editors."""
    if not is_name(name):
        raise BadInput(
            f"{name!r} cannot name a runbook: small letters, digits, '-' and '_', a letter first",
            next_step="choose another name, such as my-crash",
        )
    return _TEXT.format(name=name, schema=schema)


# Put the keys of a runbook file in one order by moving whole lines: every comment stays with its key.
#
# Mappings in braces stay as they were written, and so do names that the author chose (inputs, matchers, variables).


_STEP = (
    "id", "name", "explain", "from", "if", "run", "uses", "with", "manual", "requires", "timeout", "kill", "watch",
    "placement", "output", "engine_args", "env", "argv", "repeat", "verify_env", "matchers", "artifacts", "readers",
    "results", "outcomes", "next", "skipped",
)  # fmt: skip
_OUTCOME = (
    "when", "rule", "level", "how_known", "confidence", "location", "message", "next_step", "next",
)  # fmt: skip


def _keys(part: type) -> tuple[str, ...]:
    fields: dict[str, object] = part.model_fields  # type: ignore[attr-defined]
    return tuple(getattr(field, "alias", None) or name for name, field in fields.items() if name != "name")


_MAPPINGS = {  # the key of a mapping, or of the mapping around it where the author chooses the names
    "metadata": ("name", *_keys(Metadata)), "requires": _keys(Requires), "kill": _keys(KillPolicy),
    "watch": _keys(Watch), "placement": _keys(Placement), "output": _keys(OutputPolicy), "driver": _keys(ServerDriver),
    "manual": ("prompt", "choices", "timeout", "default"), "argv": ("wrap", "remove", "append"),
}  # fmt: skip
_NAMED = {"inputs": _keys(Input), "matchers": _keys(Matcher), "commands": _keys(Command)}


def formatted(source: YamlSource) -> str:
    """Return the text of a runbook or shared step with its keys in order; the document is the same."""
    lines = list(source.text)
    _Layout(source, lines).put_in_order((), source.value, len(lines))
    text = "\n".join(lines) + "\n"
    if _comparable(read(text.encode(), source.name).value) != _comparable(source.value):
        raise VdbgError(
            f"{source.name} cannot be put in order without a change of what it says; nothing was written",
            cause="a text over several lines, or a comment, has a layout that is not understood",
            next_step="put its keys in order by hand",
        )
    return text


def _comparable(value: Value) -> object:
    """Return a document for a comparison that the order of names matters to where their author chose them."""
    match value:
        case dict():
            named = {key: list(inner) for key, inner in value.items() if key in _NAMED and isinstance(inner, dict)}
            return named, {key: _comparable(inner) for key, inner in value.items()}
        case list():
            return [_comparable(inner) for inner in value]
        case _:
            return value


def _order(path: Path, kind: object) -> Sequence[str]:
    """Return the keys of the mapping at `path`, in their order; none where the author chooses them."""
    match path:
        case ():
            return _keys(RunbookFile)
        case ("spec",):
            return _STEP if kind == "Step" else _keys(Spec)
        case (*_, "steps", int()):
            return _STEP
        case (*_, "outcomes", int(), str()):
            return _OUTCOME
        case (*_, str() as around, str()) if around in _NAMED:
            return _NAMED[around]
        case (*_, str() as key):
            return _MAPPINGS.get(key, ())
        case _:
            return ()


class _Layout:
    """Moves the lines of one file, the innermost mappings first: a mapping keeps the lines that it has."""

    def __init__(self, source: YamlSource, lines: list[str]) -> None:
        self._source = source
        self._lines = lines
        self._kind = source.value.get("kind") if isinstance(source.value, dict) else None

    def put_in_order(self, path: Path, value: Value, end: int) -> None:
        """Put what is at `path` in order, which ends before the line `end` (counted from 0)."""
        parts: list[tuple[str | int, Value]] = []
        match value:
            case dict():
                parts = list(value.items())
            case list():
                parts = list(enumerate(value))
        starts = [self._start((*path, key), index) for index, (key, _) in enumerate(parts)]
        for (key, inner), following in zip(parts, [*starts[1:], end], strict=False):
            if following is not None:
                self.put_in_order((*path, key), inner, following)
        if isinstance(value, dict) and starts and self._is_block(path, value):
            self._sort(path, list(value), [start for start in starts if start is not None], end)

    def _start(self, path: Path, index: int) -> int | None:
        """Return the first line of a part: that of its key or dash, or of the comments and blank lines above."""
        line, column = self._place(path)
        if isinstance(path[-1], int):
            column = self._lines[line].find("-")
        while index and line > 0 and self._belongs_below(line - 1, column):
            line -= 1
        return line

    def _place(self, path: Path) -> tuple[int, int]:
        line, column = self._source.place(path, key=isinstance(path[-1], str))
        return line - 1, column - 1

    def _belongs_below(self, line: int, column: int) -> bool:
        text = self._source.text[line]
        return not text.strip() or (text.lstrip().startswith("#") and len(text) - len(text.lstrip()) == column)

    def _is_block(self, path: Path, value: dict[str, Value]) -> bool:
        """Return whether each key of a mapping begins its line; the first may follow a dash."""
        for index, key in enumerate(value):
            line, column = self._place((*path, key))
            before = self._source.text[line][:column]
            if before.strip() not in ({"", "-"} if index == 0 else {""}):
                return False
        return True

    def _sort(self, path: Path, keys: list[str], starts: list[int], end: int) -> None:
        order = {key: number for number, key in enumerate(_order(path, self._kind))}
        ranks = sorted(range(len(keys)), key=lambda index: order.get(keys[index], len(order)))
        if not order or ranks == list(range(len(keys))):
            return
        line, column = self._place((*path, keys[0]))
        dash = self._lines[line][:column]
        blocks = [self._lines[start:stop] for start, stop in zip(starts, [*starts[1:], end], strict=True)]
        blocks[0][0] = " " * column + blocks[0][0][column:]
        moved = [text for index in ranks for text in blocks[index]]
        if dash.strip():
            first = next(number for number, text in enumerate(moved) if text.strip() and text.lstrip()[0] != "#")
            moved[first] = dash + moved[first][column:]
            moved[:first] = [" " * dash.find("-") + text.lstrip() if text.strip() else text for text in moved[:first]]
        self._lines[starts[0] : end] = _blank_lines_first(moved)


def _blank_lines_first(lines: list[str]) -> list[str]:
    """Return the lines of a mapping with the blank ones before its first key moved to its end."""
    blank = next((number for number, text in enumerate(lines) if text.strip()), 0)
    return [*lines[blank:], *lines[:blank]]


# Take shared steps into a runbook: `from: NAME`, with what the runbook gives going before what the library gives.


_MERGED = ("env", "parameters")  # key by key; every other field is replaced as a whole

# A step of the library -> the step in a runbook, and what such a step does.
_KINDS: Mapping[type[Part], tuple[type[Step], str]] = {
    RunFields: (Run, "runs a command"),
    UsesFields: (Uses, "uses a built-in"),
    ManualFields: (Manual, "asks a person"),
}


class Library:
    """The shared steps by name; each is read and checked when the first runbook asks for it."""

    def __init__(self, sources: Mapping[str, YamlSource]) -> None:
        self._sources = sources
        self._files: dict[str, StepFile] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names a runbook may take steps from."""
        return tuple(self._sources)

    def take(
        self, step: SharedStep, path: Path, places: Places
    ) -> tuple[Step, dict[Path, tuple[YamlSource, Path]]] | Complaint:
        """Return the whole step with the places of what was borrowed, or the complaint why there is none.

        Raises BadDocument when the shared step's own file is wrong.
        """
        if step.source not in self._sources:
            what = f"no shared step {step.source!r}; there are: {', '.join(sorted(self._sources)) or 'none'}"
            return places.complaint((*path, "from"), what, suggestion=nearest(step.source, self._sources))
        source, shared = self._sources[step.source], self._read(step.source).spec
        kind, does = _KINDS[type(shared)]
        fields = {name: getattr(shared, name) for name in shared.model_fields_set}
        borrowed: dict[Path, tuple[YamlSource, Path]] = {
            (*path, key): (source, ("spec", key)) for key in (_key(shared, name) for name in fields)
        }
        for name in step.model_fields_set - {"id", "source"}:
            key = _key(step, name)
            if name not in kind.model_fields:
                what = f"{key!r} means nothing to the shared step {step.source!r}, which {does}"
                return places.complaint((*path, key), what, key=True)
            own = getattr(step, name)
            if name in _MERGED:
                fields[name] = {**fields.get(name, {}), **own}
                borrowed |= {(*path, key, inner): (places.source, (*path, key, inner)) for inner in own}
            else:
                fields[name] = own
                borrowed.pop((*path, key), None)
        fields = {"title": self._read(step.source).metadata.title, **fields, "id": step.id}
        return kind.model_construct(set(fields), **fields), borrowed

    def about(self, name: str) -> tuple[str, str]:
        """Return a shared step's title and explanation; raises BadDocument when its file is wrong."""
        file = self._read(name)
        return file.metadata.title, file.spec.explanation

    def text(self, name: str) -> tuple[str, ...]:
        """Return the lines of a shared step's file."""
        return self._sources[name].text

    def value(self, name: str) -> Value:
        """Return what a shared step's file says."""
        return self._sources[name].value

    def _read(self, name: str) -> StepFile:
        if name not in self._files:
            self._files[name] = validate(StepFile, self._sources[name])
        return self._files[name]


def _key(part: Part, field: str) -> str:
    fields: Any = type(part).model_fields
    return fields[field].alias or field


# Turn a runbook file into a runbook: shared steps taken in, limits inherited, a `next` for each outcome.


_INHERITED = ("timeout_s", "kill", "watch", "output", "placement")  # of a step's command, unless the step has its own


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A runbook with the places of its parts, and what is wrong with it so far."""

    runbook: Runbook
    places: Places
    complaints: tuple[Complaint, ...]


def resolve(source: YamlSource, library: Library, catalogue: Catalogue) -> Resolved:
    """Return the runbook of a file; raises BadDocument when its shape is wrong."""
    return _Resolver(validate(RunbookFile, source), source, library, catalogue).resolved()


class _Resolver:
    """Completes each step, and collects what the shape of the file could not show."""

    def __init__(self, file: RunbookFile, source: YamlSource, library: Library, catalogue: Catalogue) -> None:
        self.file = file
        self.source = source
        self.library = library
        self.catalogue = catalogue
        self.borrowed: dict[Path, tuple[YamlSource, Path]] = {}
        self.complaints: list[Complaint] = []

    @property
    def places(self) -> Places:
        return Places(source=self.source, borrowed=self.borrowed)

    def resolved(self) -> Resolved:
        steps = tuple(self._steps())
        given: dict[str, Any] = {**dict(self.file.metadata), **dict(self.file.spec), "steps": steps}
        given |= {"file": self.source.name, "digest": self._digest(), "catalogue": self.catalogue}
        runbook = Runbook.model_construct(**given)
        return Resolved(runbook=runbook, places=self.places, complaints=tuple(self.complaints))

    def _digest(self) -> str:
        taken = sorted({x.source for x in self.file.spec.steps if isinstance(x, SharedStep)})
        texts = [self.source.text, *(self.library.text(name) for name in taken if name in self.library.names)]
        return hashlib.sha256("\0".join("\n".join(lines) for lines in texts).encode()).hexdigest()

    def _steps(self) -> list[Step]:
        steps: list[Step] = []
        for index, given in enumerate(self.file.spec.steps):
            path: Path = ("spec", "steps", index)
            if isinstance(given, SharedStep):
                taken = self.library.take(given, path, self.places)
                if isinstance(taken, Complaint):
                    self.complaints.append(taken)
                    continue
                full, borrowed = taken
                self.borrowed |= borrowed
            else:
                full = given
            steps.append(self._step(full, path))
        return steps

    def _step(self, step: Step, path: Path) -> Step:
        completed: dict[str, Any] = {"title": step.title or step.id}
        match step:
            case Run():
                completed |= self._limits(step) | {"outcomes": self._outcomes(step, path)}
            case Uses():
                completed["outcomes"] = self._outcomes(step, path)
            case Manual():
                pass
            case _:
                assert_never(step)
        return step.model_copy(update=completed)

    def _limits(self, step: Run) -> dict[str, Any]:
        command = self.file.spec.commands.get(step.command)
        if command is None:
            return {}
        return {name: getattr(command, name) for name in _INHERITED if name not in step.model_fields_set}

    def _outcomes(self, step: Run | Uses, path: Path) -> tuple[Outcome, ...]:
        if not step.outcomes:
            what = f"step {step.id!r} has no outcomes: say what follows, at least '- unresolved: {{next: end}}'"
            self.complaints.append(self.places.complaint(path, what))
        return tuple(
            self._outcome(outcome, step, (*path, "outcomes", index, outcome.status.value))
            for index, outcome in enumerate(step.outcomes)
        )

    def _outcome(self, outcome: Outcome, step: Run | Uses, path: Path) -> Outcome:
        if outcome.rule and "level" not in outcome.model_fields_set:
            what = f"rule {outcome.rule} needs a level: error, warning or note"
            self.complaints.append(self.places.complaint((*path, "rule"), what, key=True))
        if "next" in outcome.model_fields_set:
            return outcome
        target = step.next
        if isinstance(target, Mapping):
            target = target.get(outcome.status, target.get("otherwise"))
        if target is None:
            what = "this outcome leads nowhere: give it, or its step, a 'next' (a step, 'end', or {runbook: NAME})"
            self.complaints.append(self.places.complaint(path, what, key=True))
            return outcome
        return outcome.model_copy(update={"next": target})
