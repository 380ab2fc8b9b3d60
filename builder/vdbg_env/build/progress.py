"""Turn BuildKit's progress, from buildx or from the engine, into build events.

BuildKit reports a graph of vertexes (github.com/moby/buildkit, api/services/control/control.proto, `StatusResponse`). A
vertex may be reported many times, out of order, and more than once as started and completed (a cache probe, then the
real run); one step of the Dockerfile must still give one start and one end.
"""

from __future__ import annotations

import base64
import codecs
import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from gpucore.errors import UnreadableBinary
from vdbg_env.build.builder import BuildEvent, BuildFailed, BuildWarning, OutputLine, StepEnded, StepStarted

# Explain why a build step failed, from its exit status and last lines, and what to type.


_KILLED = re.compile(
    r"Killed signal terminated program|\bsignal 9\b|^Killed\b|: Killed$|(ld|nvlink|cicc|ptxas) died due to signal 9"
    r"|virtual memory exhausted|Cannot allocate memory|std::bad_alloc",
    re.MULTILINE,
)
_DISK = re.compile(r"No space left on device|Disk quota exceeded|ENOSPC")
_CERTIFICATE = re.compile(
    r"certificate verify failed|self[- ]signed certificate|unknown authority|SSL certificate problem"
    r"|certificate verification failed",
    re.IGNORECASE,
)
_NO_NAME = re.compile(
    r"Temporary failure (in name resolution|resolving)|Could not resolve|Name or service not known"
    r"|Failed to establish a new connection|Network is unreachable|no such host|Could not connect to",
)
_NO_BASE = re.compile(
    r"pull access denied|manifest unknown|repository does not exist|failed to (resolve|do request|fetch)"
    r"|not found: manifest|failed to load cache key|failed to authorize"
)
_NOT_ROOT = re.compile(r"/var/(lib|cache)/(apt|dpkg)/\S+ .*Permission denied|are you root\?")
_NO_COMMAND = re.compile(r"([\w./+-]+): (?:command )?not found")


@dataclass(frozen=True, kw_only=True)
class _Evidence:
    title: str
    code: int | None
    message: str
    text: str
    jobs: int | None


_Answer = tuple[str, str | None]
_Rule = Callable[[_Evidence], _Answer | None]


def explain_failure(
    *, title: str, code: int | None, message: str, tail: Sequence[str], jobs: int | None
) -> tuple[str, str | None]:
    """Return the cause in one sentence and what to type, from a step's title, exit status, error and last lines.

    `jobs` is the number of compilers the plan ran at once, if it is known. The first rule that knows the failure is
    used, else the engine's own message.
    """
    evidence = _Evidence(title=title, code=code, message=message, text="\n".join([message, *tail]), jobs=jobs)
    for rule in _RULES:
        if answer := rule(evidence):
            return answer
    return _own_words(evidence)


def engine_gone(reason: str) -> tuple[str, str]:
    """Return the cause and what to type for a build whose engine went away in the middle of it."""
    return (
        f"the engine went away ({_short(reason)[:200]}): it was stopped, crashed or was killed",
        "docker version, to see whether it is back, then build again: finished steps are in the cache",
    )


def _disk_full(e: _Evidence) -> _Answer | None:
    if not _DISK.search(e.text):
        return None
    return (
        "the disk the engine keeps its images on is full",
        "docker system df, free some space there, then build again: finished steps are in the cache",
    )


def _out_of_memory(e: _Evidence) -> _Answer | None:
    if e.code != 137 and not _KILLED.search(e.text):
        return None
    what = "exit status 137 = SIGKILL" if e.code == 137 else "a compiler was killed or got no memory"
    if e.jobs is not None and e.jobs > 1:
        return f"{what}: {e.jobs} compilers at once needed more memory than there is", (
            f"the same command with --jobs {max(1, e.jobs // 2)}"
        )
    return f"{what}: the step needed more memory than there is", "build on a machine with more memory, or add swap"


def _certificate(e: _Evidence) -> _Answer | None:
    if not _CERTIFICATE.search(e.text):
        return None
    return (
        "a server showed a certificate the image does not trust; a proxy that inspects TLS does that",
        "the same command with --ca-bundle FILE, the certificate bundle of your organisation",
    )


def _no_base(e: _Evidence) -> _Answer | None:
    pulling = e.code is None and e.title.startswith(("FROM ", "[internal] load metadata for "))
    if not (pulling or _NO_BASE.search(e.message)):
        return None
    return (
        f"the base image is neither on this engine nor available from its registry ({_short(e.message)})",
        "docker pull the base image and look at the message, or give one you have with --base",
    )


def _no_network(e: _Evidence) -> _Answer | None:
    if not _NO_NAME.search(e.text):
        return None
    return (
        "the step reached no network or no name server",
        "check the proxy and mirror settings; --network host lets the build use the network of this machine",
    )


def _not_root(e: _Evidence) -> _Answer | None:
    if not _NOT_ROOT.search(e.text):
        return None
    return (
        "the base image has a user who is not root, and packages cannot be installed",
        "printf 'FROM BASE\\nUSER root\\n' | docker build --tag base-as-root -, then --base base-as-root",
    )


def _no_command(e: _Evidence) -> _Answer | None:
    if e.code != 127:
        return None
    found = _NO_COMMAND.search(e.text)
    program = f" ({found[1]})" if found else ""
    return f"exit status 127: the step called a program{program} that the image does not have", None


def _own_words(e: _Evidence) -> _Answer:
    if e.code is not None:
        return f"its command ended with exit status {e.code}; the last lines it printed say more", None
    return _short(e.message) or "the engine gave no reason", None


def _short(message: str) -> str:
    """Return an engine's message on one line, without the whole script that BuildKit repeats before its reason."""
    _, _, reason = message.rpartition("executor failed running [")
    _, bracket, behind = reason.rpartition("]: ")
    return " ".join((behind if bracket else message).split())[:300]


_RULES: tuple[_Rule, ...] = (_disk_full, _out_of_memory, _certificate, _no_base, _no_network, _not_root, _no_command)


TAIL_LINES = 40
Stream = Literal["stdout", "stderr"]

# "[ 3/12] RUN ...", "[base 2/3] RUN ...", "[linux/arm64 base 2/3] RUN ..."
_NUMBERED = re.compile(r"^\[(?P<stage>[^\]]*?)\s*(?P<number>\d+)/(?P<total>\d+)\] (?P<title>.*)$", re.DOTALL)
_EXIT_CODE = re.compile(r"exit code: (\d+)")
_CONTROL = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-Z\\-_]|[\x00-\x08\x0b-\x1f\x7f]"
)


@dataclass(frozen=True, kw_only=True)
class Vertex:
    """One report about one node of the build graph; times are seconds since the epoch."""

    digest: str
    name: str
    cached: bool = False
    started: float | None = None
    completed: float | None = None
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class LogChunk:
    """Some bytes a vertex's command wrote; a line may be spread over several chunks."""

    vertex: str
    stream: Stream
    data: bytes


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What one message of the progress stream said."""

    vertexes: tuple[Vertex, ...] = ()
    logs: tuple[LogChunk, ...] = ()
    warnings: tuple[str, ...] = ()


def clean_line(raw: bytes) -> str:
    """Return one line as a person should see it: the last rewrite of a progress bar, without control sequences."""
    text = raw.decode("utf-8", "replace").rstrip("\r")
    return _CONTROL.sub("", text.rsplit("\r", 1)[-1])


class LineSplitter:
    """Collects chunks of one stream into whole lines; `rest` gives what has no line end yet."""

    # A program that never ends its line must not grow the buffer without end.
    _LONGEST = 64 * 1024

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> Iterator[str]:
        *whole, self._held = (self._held + data).split(b"\n")
        yield from map(clean_line, whole)
        if len(self._held) > self._LONGEST:
            yield from self.rest()

    def rest(self) -> Iterator[str]:
        held, self._held = self._held, b""
        if held:
            yield clean_line(held)


@dataclass
class _Step:
    key: str
    title: str
    started: float | None = None
    told: bool = False
    ended: bool = False
    error: str = ""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    lines: dict[Stream, LineSplitter] = field(
        default_factory=lambda: {"stdout": LineSplitter(), "stderr": LineSplitter()}
    )


class ProgressReader:
    """Follows one build; `events` turns each message into events, `failure` says what went wrong at the end."""

    def __init__(self, *, jobs: int | None = None) -> None:
        self._steps: dict[str, _Step] = {}
        self._failed: _Step | None = None
        self._jobs = jobs

    def events(self, progress: Progress) -> Iterator[BuildEvent]:
        for vertex in progress.vertexes:
            yield from self._started(vertex)
        for chunk in progress.logs:
            yield from self._printed(chunk)
        for vertex in progress.vertexes:
            yield from self._ended(vertex)
        for warning in progress.warnings:
            yield BuildWarning(text=warning)

    def running(self) -> str | None:
        """Return the title of the step that was at work last, if any."""
        open_steps = [s for s in self._steps.values() if s.started is not None and not s.ended]
        return open_steps[-1].title if open_steps else None

    def failure(self, message: str) -> BuildFailed:
        """Return the failure the build ended with; `message` is the engine's final message."""
        step = self._failed
        error = step.error if step else message
        code = _EXIT_CODE.search(error) or _EXIT_CODE.search(message)
        tail = tuple(step.tail) if step else ()
        number = int(code[1]) if code else None
        title = step.title if step else (self.running() or "before the first step")
        cause, next_step = explain_failure(title=title, code=number, message=error, tail=tail, jobs=self._jobs)
        return BuildFailed(
            key=step.key if step else None, title=title, code=number, cause=cause, next_step=next_step, tail=tail
        )

    def lost(self, reason: str) -> BuildFailed:
        """Return the failure of a build whose engine went away in the middle of it."""
        cause, next_step = engine_gone(reason)
        title = self.running() or "before the first step"
        return BuildFailed(key=None, title=title, code=None, cause=cause, next_step=next_step)

    def _started(self, vertex: Vertex) -> Iterator[BuildEvent]:
        step = self._steps.get(vertex.digest)
        numbered = _NUMBERED.match(vertex.name)
        if step is None:
            title = numbered["title"] if numbered else vertex.name
            step = self._steps[vertex.digest] = _Step(key=vertex.digest, title=" ".join(title.split()))
        if step.started is None and (vertex.started is not None or vertex.cached):
            step.started = vertex.started or 0.0
            if _worth_telling(vertex):
                yield _told(step, numbered)

    def _printed(self, chunk: LogChunk) -> Iterator[BuildEvent]:
        step = self._steps.get(chunk.vertex)
        if step is None:
            return
        for text in step.lines[chunk.stream].feed(chunk.data):
            step.tail.append(text)
            yield OutputLine(key=step.key, text=text, stream=chunk.stream)

    def _ended(self, vertex: Vertex) -> Iterator[BuildEvent]:
        step = self._steps[vertex.digest]
        if vertex.error and not _is_only_cancelled(vertex.error):
            step.error = vertex.error
            self._failed = self._failed or step
        if step.ended or vertex.completed is None or (step.started is None and not vertex.error):
            return
        step.ended = True
        for stream, splitter in step.lines.items():
            for text in splitter.rest():
                step.tail.append(text)
                yield OutputLine(key=step.key, text=text, stream=stream)
        if _worth_telling(vertex):
            if not step.told:
                yield _told(step, _NUMBERED.match(vertex.name))
            took = 0.0 if vertex.cached else max(0.0, vertex.completed - (vertex.started or vertex.completed))
            yield StepEnded(key=step.key, cached=vertex.cached, duration_s=took, error=vertex.error or None)


def _told(step: _Step, numbered: re.Match[str] | None) -> StepStarted:
    step.told = True
    number, total = (int(numbered["number"]), int(numbered["total"])) if numbered else (None, None)
    return StepStarted(key=step.key, title=step.title, number=number, total=total)


def _worth_telling(vertex: Vertex) -> bool:
    """Leave out BuildKit's own errands, unless one fails."""
    return bool(vertex.error) or not (vertex.name.startswith("[internal]") or vertex.name == "copy /context /")


def _is_only_cancelled(error: str) -> bool:
    # When one step fails, its siblings end with this error; the failing one is what the user needs.
    return "context canceled" in error


# Read what `docker buildx build --progress=rawjson` writes: JSON documents, with plain text mixed in.
#
# buildx 0.13 pretty-prints each document over many lines, newer ones write one to a line, and warnings and the closing
# `ERROR:` are in the same stream as text (docker/buildx#2967). So documents are decoded from a buffer, and what cannot
# start one is returned as text.


class RawJsonReader:
    """Takes the stream in pieces of any size; gives `Progress` for each document and `str` for each line of text."""

    # A document is a few hundred bytes to some tens of kilobytes; what opens with a brace and is still no document
    # after this many characters is text.
    _LONGEST = 4 << 20

    def __init__(self) -> None:
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._decoder = json.JSONDecoder()

    def feed(self, data: bytes, *, final: bool = False) -> Iterator[Progress | str]:
        """Yield what the bytes so far complete; with `final`, also the text of a document that was cut off."""
        self._held += self._text.decode(data, final)
        while held := self._held.lstrip():
            self._held = held
            if not held.startswith("{"):
                line, end, rest = held.partition("\n")
                if not end and not final:
                    return
                self._held = rest
                yield line.rstrip()
                continue
            try:
                document, length = self._decoder.raw_decode(held)
            except json.JSONDecodeError:
                if not final and len(held) < self._LONGEST:
                    return
                line, _, self._held = held.partition("\n")
                yield line.rstrip()
                continue
            self._held = held[length:]
            yield _progress(document)


def _progress(document: dict[str, Any]) -> Progress:
    return Progress(
        vertexes=tuple(map(_vertex, _entries(document, "vertexes"))),
        logs=tuple(map(_log, _entries(document, "logs"))),
        warnings=tuple(map(_warning, _entries(document, "warnings"))),
    )


def _entries(document: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    found = document.get(name)
    yield from (entry for entry in found if isinstance(entry, dict)) if isinstance(found, list) else ()


def _vertex(v: dict[str, Any]) -> Vertex:
    return Vertex(
        digest=str(v.get("digest", "")),
        name=str(v.get("name", "")),
        cached=bool(v.get("cached", False)),
        started=_seconds(v.get("started")),
        completed=_seconds(v.get("completed")),
        error=str(v.get("error") or ""),
    )


def _log(entry: dict[str, Any]) -> LogChunk:
    return LogChunk(
        vertex=str(entry.get("vertex", "")),
        stream="stderr" if entry.get("stream") == 2 else "stdout",
        data=_bytes(entry.get("data")),
    )


def _warning(entry: dict[str, Any]) -> str:
    return _bytes(entry.get("short")).decode("utf-8", "replace")


def _bytes(value: object) -> bytes:
    try:
        return base64.b64decode(value) if isinstance(value, str) else b""
    except ValueError:
        return b""


def _seconds(stamp: object) -> float | None:
    try:
        return datetime.fromisoformat(stamp).timestamp() if isinstance(stamp, str) else None
    except ValueError:
        return None


# Read the progress of the engine's own BuildKit: protobuf messages carried in the `aux` of a build's JSON stream.
#
# The message is `StatusResponse` of github.com/moby/buildkit, api/services/control/control.proto. Only the fields that
# a user needs are read; unknown ones are skipped, as protobuf requires of every reader.


def read_status_response(message: bytes) -> Progress:
    """Decode one `StatusResponse`; raises UnreadableBinary when the bytes are not protobuf."""
    vertexes: list[Vertex] = []
    logs: list[LogChunk] = []
    warnings: list[str] = []
    for number, value in _fields(message):
        match number, value:
            case 1, bytes():
                vertexes.append(_vertex_of_message(value))
            case 3, bytes():
                logs.append(_log_of_message(value))
            case 4, bytes():
                warnings.extend(_text(v) for n, v in _fields(value) if n == 3)
            case _:
                pass
    return Progress(vertexes=tuple(vertexes), logs=tuple(logs), warnings=tuple(warnings))


def _vertex_of_message(message: bytes) -> Vertex:
    found = dict(_fields(message))
    return Vertex(
        digest=_text(found.get(1)),
        name=_text(found.get(3)),
        cached=bool(found.get(4, 0)),
        started=_timestamp(found.get(5)),
        completed=_timestamp(found.get(6)),
        error=_text(found.get(7)),
    )


def _log_of_message(message: bytes) -> LogChunk:
    found = dict(_fields(message))
    stream, data = found.get(3, 1), found.get(4, b"")
    return LogChunk(
        vertex=_text(found.get(1)),
        stream="stderr" if stream == 2 else "stdout",
        data=data if isinstance(data, bytes) else b"",
    )


def _text(value: int | bytes | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _timestamp(value: int | bytes | None) -> float | None:
    """Return a `google.protobuf.Timestamp` (seconds, nanoseconds) in seconds; its absence is None."""
    if not isinstance(value, bytes):
        return None
    found = dict(_fields(value))
    seconds, nanoseconds = found.get(1, 0), found.get(2, 0)
    return float(seconds) + nanoseconds / 1e9 if isinstance(seconds, int) and isinstance(nanoseconds, int) else None


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield every field as its number and its value: a whole number, or the bytes of a string or inner message."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        match wire:
            case 1:
                size = 8
            case 5:
                size = 4
            case 2:
                size, at = _varint(message, at)
            case _:
                raise UnreadableBinary(f"the engine's progress has a field of unknown wire type {wire}", offset=at)
        if at + size > len(message):
            raise UnreadableBinary("the engine's progress ends within a field", offset=at)
        yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise UnreadableBinary("the engine's progress ends within a number", offset=at)
