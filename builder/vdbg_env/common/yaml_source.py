"""Read YAML into plain values that remember their places, and reports every complaint with its line and a caret.

libyaml gives the events (with positions, and some ten times faster than a pure Python reader); scalars are resolved
here by the YAML 1.2 core schema, so `22:22`, `0644`, `yes` and `on` stay what the author wrote. Tags, aliases, merge
keys and duplicate keys are refused: none is needed in our files, and each has its own way of surprising a reader.
"""

from __future__ import annotations

import math
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from vdbg_env.common.console import nearest, printable
from vdbg_env.common.errors import BadInput, quoted

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

    Model = TypeVar("Model", bound=BaseModel)

Path = tuple[str | int, ...]
Scalar = str | int | float | bool | None
Value = Scalar | list["Value"] | dict[str, "Value"]

MAX_BYTES = 4 << 20
MAX_DEPTH = 64
MAX_COMPLAINTS = 100  # of one file, which may have one in every byte

_FORMS = {  # patterns of more than one model, in words
    r"^[a-z0-9][a-z0-9-]*$": "made of small letters, digits and hyphens",
    r"^\d+(\.\d+)*$": "a release such as 0.24.0",
}

_Loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


@dataclass(frozen=True, kw_only=True)
class Complaint:
    """One thing wrong at one place of a text document; line and column are 1-based."""

    file: str
    line: int
    column: int
    what: str
    excerpt: str = ""
    suggestion: str | None = None

    def lines(self) -> tuple[str, ...]:
        """Return the complaint as the lines a compiler would print: place, source line, caret."""
        hint = f" (did you mean {self.suggestion!r}?)" if self.suggestion else ""
        head = printable(f"{self.file}:{self.line}:{self.column}: {self.what}{hint}")
        if not self.excerpt.strip():
            return (head,)
        # A caret fits only when the line above it is as wide as it looks (tabs become one blank), and a line
        # without end must not fill the screen: only what is around the column is shown.
        start = max(0, self.column - 60)
        shown = printable(self.excerpt.replace("\t", " ")[start : start + 110])
        return (head, "    " + shown, "    " + " " * (self.column - 1 - start) + "^")


class BadDocument(BadInput):
    """One or more complaints about a text document, all at once."""

    def __init__(self, complaints: tuple[Complaint, ...], *, next_step: str | None = None) -> None:
        count = len(complaints)
        what = f"{complaints[0].file}: {count} problem{'s' if count > 1 else ''} found"
        super().__init__(what, next_step=next_step, details=tuple(x for c in complaints for x in c.lines()))
        self.complaints = complaints


@dataclass(frozen=True, kw_only=True)
class YamlSource:
    """One document: its plain value, its text by lines, and the 1-based line and column of every key and value."""

    name: str
    value: Value
    text: tuple[str, ...] = ()
    places: Mapping[Path, tuple[int, int]] = field(default_factory=dict)
    key_places: Mapping[Path, tuple[int, int]] = field(default_factory=dict)

    def complaint(self, path: Path, what: str, *, key: bool = False, suggestion: str | None = None) -> Complaint:
        """Make a complaint about the value at `path` (or its key); the nearest place that is known is taken."""
        line, column = self.place(path, key=key)
        excerpt = self.text[line - 1] if line <= len(self.text) else ""
        return Complaint(file=self.name, line=line, column=column, what=what, excerpt=excerpt, suggestion=suggestion)

    def place(self, path: Path, *, key: bool = False) -> tuple[int, int]:
        """Return the 1-based line and column of the value (or key) at `path`, or of its nearest parent."""
        first = self.key_places if key else self.places
        for length in range(len(path), -1, -1):
            found = first.get(path[:length]) or self.places.get(path[:length])
            if found:
                return found
        return 1, 1


def read(text: bytes | str, name: str) -> YamlSource:
    """Parse one YAML document; raises BadDocument with every place that is wrong."""
    data = text.encode() if isinstance(text, str) else text
    if len(data) > MAX_BYTES:
        raise BadInput(f"{name} is longer than {MAX_BYTES} bytes, the most that is read", cause="another kind of file")
    try:
        decoded = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadDocument((Complaint(file=name, line=line, column=1, what="not UTF-8 text"),)) from None
    lines = tuple(decoded.splitlines())
    reader = _Reader(name, lines)
    try:
        # Events, not libyaml's composer: that one recurses in C and dies of a deeply nested file.
        for event in yaml.parse(decoded, Loader=_Loader):
            reader.take(event)
    except yaml.MarkedYAMLError as error:
        raise BadDocument((*reader.complaints, _syntax_complaint(error, name, lines))) from None
    except yaml.YAMLError as error:  # a control character, for one, has no mark
        what = str(error).splitlines()[0]
        raise BadDocument((Complaint(file=name, line=1, column=1, what=what),)) from None
    if reader.documents != 1 or not reader.values:
        what = "one document is expected, more were found" if reader.documents > 1 else "the file is empty"
        raise BadDocument((Complaint(file=name, line=1, column=1, what=what),))
    if reader.complaints:
        raise BadDocument(tuple(reader.complaints))
    return YamlSource(name=name, value=reader.values[0], text=lines, places=reader.places, key_places=reader.key_places)


def read_tables(folder: pathlib.Path) -> tuple[tuple[str, bytes], ...]:
    """Return the YAML files of a folder, each with its path, by name; raises BadInput for a pipe or folder so named."""
    found = sorted((*folder.glob("*.yaml"), *folder.glob("*.yml")))
    for path in found:
        if not path.is_file():  # a pipe would be waited for
            raise BadInput(f"{path} is not a file", next_step=f"ls -l {quoted(folder)}, and take it away")
    return tuple((str(path), path.read_bytes()) for path in found)


def validate(model: type[Model], source: YamlSource) -> Model:
    """Check a document against a pydantic model; raises BadDocument with every complaint at its line and column."""
    from pydantic import ValidationError

    try:
        return model.model_validate(source.value, by_alias=True, by_name=False, context={"document": source.name})
    except ValidationError as error:
        raise BadDocument(tuple(islice(_model_complaints(error, source, model), MAX_COMPLAINTS))) from None


_NO_KEY = object()


@dataclass
class _Open:
    """A mapping or sequence whose end is not read yet."""

    path: Path
    value: dict[str, Value] | list[Value]
    key: Any = _NO_KEY  # the key whose value is next; None when that value is to be dropped


class _Reader:
    """Builds values from parse events without recursion, keeping places and collecting complaints."""

    def __init__(self, name: str, lines: Sequence[str]) -> None:
        self.name = name
        self.lines = lines
        self.documents = 0
        self.values: list[Value] = []
        self.places: dict[Path, tuple[int, int]] = {}
        self.key_places: dict[Path, tuple[int, int]] = {}
        self.complaints: list[Complaint] = []
        self._open: list[_Open] = []

    def take(self, event: yaml.Event) -> None:
        """Take in the next event; raises BadDocument at once when the nesting is too deep to be meant."""
        match event:
            case yaml.DocumentStartEvent():
                self.documents += 1
            case yaml.AliasEvent():
                self._complain(event, "aliases (*name) are not allowed; write the value out")
                self._put(event, None)
            case yaml.ScalarEvent():
                self._check_tag(event)
                top = self._open[-1] if self._open else None
                if top and isinstance(top.value, dict) and top.key is _NO_KEY:
                    self._key(event, top, top.value)
                else:
                    self._put(event, resolve_scalar(event.value, plain=not event.style))
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._check_tag(event)
                value: dict[str, Value] | list[Value] = {} if isinstance(event, yaml.MappingStartEvent) else []
                self._open.append(_Open(self._put(event, value), value))
                if len(self._open) > MAX_DEPTH:
                    self._complain(event, f"nested deeper than {MAX_DEPTH} levels")
                    raise BadDocument(tuple(self.complaints))
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._open.pop()

    def _key(self, event: yaml.ScalarEvent, top: _Open, mapping: dict[str, Value]) -> None:
        key = event.value
        if key == "<<" and not event.style:
            self._complain(event, "merge keys (<<) are not allowed; write the values out")
            top.key = None
        elif key in mapping:
            line, _ = self.key_places[(*top.path, key)]
            self._complain(event, f"duplicate key {key!r}, first given on line {line}")
            top.key = None
        else:
            self.key_places[(*top.path, key)] = _place(event)
            top.key = key

    def _put(self, event: yaml.Event, value: Value) -> Path:
        """Put a value where it belongs and return its path."""
        path: Path = ()
        if not self._open:
            self.values.append(value)
        else:
            top = self._open[-1]
            if isinstance(top.value, list):
                path = (*top.path, len(top.value))
                top.value.append(value)
            elif top.key is _NO_KEY:  # a mapping or sequence is where a key should be
                self._complain(event, "a key must be plain text")
                top.key = None
            else:
                path = (*top.path, "" if top.key is None else top.key)
                if top.key is not None:
                    top.value[top.key] = value
                top.key = _NO_KEY
        self.places.setdefault(path, _place(event))
        return path

    def _check_tag(self, event: yaml.NodeEvent) -> None:
        tag = getattr(event, "tag", None)
        if tag:
            self._complain(event, f"tags are not allowed: {tag}")

    def _complain(self, event: yaml.Event, what: str) -> None:
        line, column = _place(event)
        excerpt = self.lines[line - 1] if line <= len(self.lines) else ""
        self.complaints.append(Complaint(file=self.name, line=line, column=column, what=what, excerpt=excerpt))
        if len(self.complaints) == MAX_COMPLAINTS:
            raise BadDocument(tuple(self.complaints))


def resolve_scalar(text: str, *, plain: bool) -> Scalar:
    """Resolve one scalar by the YAML 1.2 core schema (section 10.3.2); quoted text stays text."""
    if not plain:
        return text
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text) and len(text) < 40:
        return int(text, 0) if text[:2] in {"0o", "0x"} else int(text)
    if _FLOAT.fullmatch(text) and math.isfinite(number := float(text)):
        return number
    return text


def _place(event: yaml.Event) -> tuple[int, int]:
    mark = event.start_mark
    return (mark.line + 1, mark.column + 1) if mark else (1, 1)


def _syntax_complaint(error: yaml.MarkedYAMLError, name: str, lines: Sequence[str]) -> Complaint:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    excerpt = lines[line - 1] if line <= len(lines) else ""
    what = error.problem or "not YAML"
    if "\t" in excerpt[: len(excerpt) - len(excerpt.lstrip())]:
        what = "a tab is used for indentation; YAML allows blanks only"
    elif what == "exceeded maximum nesting depth":  # libyaml 0.2.6 has its own limit, and reads ahead to it
        what = f"nested deeper than {MAX_DEPTH} levels"
    elif error.context:
        what = f"{what} ({error.context})"
    return Complaint(file=name, line=line, column=column, what=what, excerpt=excerpt)


def _model_complaints(error: ValidationError, source: YamlSource, model: type[BaseModel]) -> Iterator[Complaint]:
    for problem in error.errors(include_url=False):
        path = _known_path(problem["loc"], source.value)
        is_key = problem["loc"][-1:] == ("[key]",)
        match problem["type"]:
            case "extra_forbidden":
                key = str(problem["loc"][-1])
                where = path if path and path[-1] == key else (*path, key)
                known = _fields_at(model, where[:-1])
                if key in known:  # of another kind of the same thing: pydantic's tag before the key says which this is
                    yield source.complaint(where, f"a {problem['loc'][-2]} has no key {key!r}", key=True)
                else:
                    yield source.complaint(where, f"unknown key {key!r}", key=True, suggestion=nearest(key, known))
            case "missing":
                yield source.complaint(path, f"the key {str(problem['loc'][-1])!r} is missing")
            case "literal_error" | "enum":
                expected = problem.get("ctx", {}).get("expected", "")
                options = re.findall(r"'([^']*)'", expected)
                got = str(problem["input"])
                what = f"{got!r} is not one of {', '.join(options)}"
                yield source.complaint(path, what, key=is_key, suggestion=nearest(got, options))
            case "string_type":
                yield source.complaint(path, f"a text is needed here, not {_kind(problem['input'])}", key=is_key)
            case "model_type" | "dict_type" | "list_type" | "tuple_type":
                wanted = "a mapping" if problem["type"] in {"model_type", "dict_type"} else "a list"
                yield source.complaint(path, f"{wanted} is needed here, not {_kind(problem['input'])}", key=is_key)
            case "int_type" | "int_parsing" | "int_from_float":
                yield source.complaint(path, f"a whole number is needed here, not {problem['input']!r}", key=is_key)
            case "float_type" | "float_parsing":
                yield source.complaint(path, f"a number is needed here, not {problem['input']!r}", key=is_key)
            case "bool_type" | "bool_parsing":
                yield source.complaint(path, f"true or false is needed here, not {problem['input']!r}", key=is_key)
            case "greater_than_equal" | "less_than_equal" | "greater_than" | "less_than":
                words = {"ge": "at least", "le": "at most", "gt": "more than", "lt": "less than"}
                ((bound, limit),) = problem["ctx"].items()
                yield source.complaint(path, f"{problem['input']!r} is not {words[bound]} {limit:g}", key=is_key)
            case "too_short":  # a wrong entry has its own complaint, and is not counted
                if not problem["input"]:
                    yield source.complaint(path, "at least one entry is needed here", key=is_key)
            case "string_too_short":
                least = problem["ctx"]["min_length"]
                yield source.complaint(path, f"a text of at least {least} characters is needed here", key=is_key)
            case "string_pattern_mismatch":
                wanted = problem["ctx"]["pattern"]
                form = _FORMS.get(wanted, f"of the form {wanted}")
                yield source.complaint(path, f"{problem['input']!r} is not {form}", key=is_key)
            case "default_factory_not_called":  # what it is made from is wrong, which has its own complaint
                continue
            case _:
                what = problem["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
                yield source.complaint(path, what[:1].lower() + what[1:], key=is_key)


def _kind(value: object) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "a mapping"}
    return "a text" if isinstance(value, str) else kinds.get(type(value), "nothing")


def _known_path(loc: Sequence[str | int], value: Value) -> Path:
    """Keep of pydantic's `loc` what is really in the document: union tags and function names are not."""
    path: list[str | int] = []
    here: Value = value
    for part in loc:
        if isinstance(here, dict) and part in here:
            here = here[str(part)]
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            here = here[part]
        else:
            continue
        path.append(part)
    return tuple(path)


def _fields_at(model: type[BaseModel], path: Path) -> set[str]:
    """Return the key names the published schema of `model` knows at `path`, for a suggestion."""
    schema = model.model_json_schema()
    definitions = schema.get("$defs", {})
    here: list[dict[str, Any]] = _expand(schema, definitions)
    for part in path:
        found: list[dict[str, Any]] = []
        for option in here:
            inner = option.get("items") if isinstance(part, int) else option.get("properties", {}).get(part)
            inner = inner or (option.get("additionalProperties") if isinstance(part, str) else None)
            if isinstance(inner, dict):
                found += _expand(inner, definitions)
        here = found
    return {name for option in here for name in option.get("properties", {})}


def _expand(schema: dict[str, Any], definitions: dict[str, Any]) -> list[dict[str, Any]]:
    """Follow references and unions down to the object schemas that they refer to."""
    if "$ref" in schema:
        return _expand(definitions[schema["$ref"].rsplit("/", 1)[-1]], definitions)
    branches = [*schema.get("anyOf", []), *schema.get("oneOf", []), *schema.get("allOf", [])]
    return [x for branch in branches for x in _expand(branch, definitions)] or [schema]
