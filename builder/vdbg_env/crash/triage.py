"""Read the logs of a run, name its failure, and show the verdict."""

from __future__ import annotations

import codecs
import errno
import os
import re
import stat
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from gpucore.errors import ExplainedError
from vdbg_env.common.console import json_text, printable
from vdbg_env.common.errors import BAD_INPUT, BadInput, quoted, unreadable
from vdbg_env.common.files import PACKED_ENDS, packing_of
from vdbg_env.common.stop import asked, go_on
from vdbg_env.evidence.finding import UNKNOWN
from vdbg_env.evidence.knowledge import shipped_knowledge
from vdbg_env.evidence.system import parse_kernel_log
from vdbg_env.evidence.triage_rules import RuleBook, rule_book
from vdbg_env.evidence.triage_scan import LogClassifier, LogEvidence
from vdbg_env.evidence.triage_verdict import GENERIC, Alternative, Triage, judge

if TYPE_CHECKING:
    from gpucore.dwarf import LinesByName
    from vdbg_env.crash.line_packs import PackedLines
    from vdbg_env.crash.memory_map import MemoryMap

_NAME = re.compile(r"(?<!\S)(?:--[a-z][\w.-]*|-[a-z]{2,3}\b|[A-Z][A-Z0-9_]{3,})")

# The runbook of an illegal access also finds other exceptions of kernels, and hangs: it dumps and reads both.
_ONE_RUNBOOK = "illegal-memory-access"
_MOST_EMPTY = 3  # files without a word that are each named
_ALSO_FOUND = frozenset({"misaligned-address", "device-side-assert", "kernel-hang"})


def triage_logs(
    targets: Sequence[str],
    lines: Callable[[], PackedLines] | None = None,
    *,
    rules: Path | None = None,
    maps: Sequence[MemoryMap] = (),
) -> Triage:
    """Name the failure of one run from its logs, as paths, `-` the standard input; raises BadInput if none can be read.

    Where they name a kernel with an offset, its lines are looked for in what `lines` opens; packs are fetched only from
    addresses that are configured, a few of each. `maps` say whose memory the page of an Xid line is.
    """
    book = rule_book(rules)
    read = [_read_log(log, book) for log in open_logs(targets)]
    evidence = [log for log, _ in read]
    _refuse_if_nothing_was_read(read)
    evidence = [replace(log, cores=tuple(_core_at(core, log.file) for core in log.cores)) for log in evidence]
    logs = [log for log in evidence if log.lines or not os.path.isdir(log.file)]  # noqa: PTH112 (never raises)
    verdict = judge(logs, book)
    problems = tuple(note for log in evidence for note in log.notes) + _empty(evidence)
    verdict = replace(verdict, notes=(*problems, *verdict.notes, *_stale(evidence)))
    verdict = replace(verdict, notes=(*_owners(verdict, maps), *verdict.notes)) if maps else verdict
    return _with_lines(verdict, lines, _release(evidence)) if lines and verdict.kernel_text else verdict


def _core_at(core: str, log: str) -> str:
    """Return where a core is that a log names: next to the log, where both were copied to another machine."""
    near = os.path.join(os.path.dirname(log), os.path.basename(core))  # noqa: PTH118, PTH119, PTH120 - as it was typed
    found = (path for end in ("", *PACKED_ENDS) for path in (core + end, near + end))
    return next((path for path in found if os.path.isfile(path)), core)  # noqa: PTH113 (never raises)


def _owners(verdict: Triage, maps: Sequence[MemoryMap]) -> Iterator[str]:
    """Yield whose memory the pages are that the driver names, each once."""
    from vdbg_env.crash.memory_files import owner_of_fault  # loaded where the user gave a map

    root = (verdict.root_cause.text,) if verdict.root_cause else ()
    log = parse_kernel_log("\n".join((*root, *(line.text for line in verdict.evidence))))
    yield from dict.fromkeys(line for xid in log.xids for line in owner_of_fault(xid, maps)[0])


def _with_lines(verdict: Triage, open_lines: Callable[[], PackedLines], release: str | None) -> Triage:
    """Add the lines of the kernel that the logs name: by packs on this machine, else by those of the addresses."""
    from vdbg_env.crash.line_packs import lines_by_name, named_place  # for the few logs that name a kernel

    place = named_place(verdict.kernel_text) if verdict.kernel_text else None
    if place is None:
        return verdict
    lines = open_lines()
    found = lines_by_name(lines.local_packs(), place)
    found = found or lines_by_name(lines.fetched_packs(place.name or "", release), place)
    return replace(verdict, lines=found, notes=(*verdict.notes, *lines.notes))


def _release(evidence: Sequence[LogEvidence]) -> str | None:
    """Return the release of vLLM that the logs name."""
    return next((log.release for log in evidence if log.release), None)


def _stale(evidence: Sequence[LogEvidence]) -> Iterator[str]:
    """Yield what replaced the flags and variables that the logs report as unknown."""
    release = _release(evidence)
    said = " ".join(text for log in evidence for text in log.settings)
    for name in dict.fromkeys(_NAME.findall(said)):
        judged = shipped_knowledge().judge_name(name, release)
        if judged.level == "error" and judged.replaced_by:
            yield f"has no effect: {judged.message}" + (f" ({judged.source})" if judged.source else "")


def runbook_to_start(name: str | None, available: Collection[str]) -> str | None:
    """Return the available runbook for a class that names the runbook `name`, or None."""
    if name in available:
        return name
    return _ONE_RUNBOOK if name in _ALSO_FOUND and _ONE_RUNBOOK in available else None


def _read_log(log: LogFile, book: RuleBook) -> tuple[LogEvidence, ExplainedError | None]:
    """Read one log to its end; returns why it could not be.

    A log that breaks off (a damaged archive) still counts as far as it went.
    """
    classifier = LogClassifier(book, log.name)
    problem: ExplainedError | None = None
    read = 0
    try:
        for chunk in log.chunks:
            if asked.gone:
                go_on()
            read += len(chunk)
            classifier.feed(chunk)
    except BAD_INPUT as error:
        problem = error
    found = classifier.finish() if read else replace(classifier.finish(), lines=0)
    if problem:
        then = "only what could be read was looked at" if read or not problem.next_step else problem.next_step
        found = replace(found, notes=(f"{problem.what}; {then}",))
    return found, problem


def _empty(logs: Sequence[LogEvidence]) -> tuple[str, ...]:
    """Say of logs that they are empty, or all zeros as a full disk leaves them: they say nothing of the run."""
    empty = [log.file for log in logs if not log.lines and not log.notes]
    if len(empty) > _MOST_EMPTY:
        return (f"{empty[0]} and {len(empty) - 1} more files hold no text",)
    return tuple(f"{name} holds no text" for name in empty)


def _refuse_if_nothing_was_read(read: Sequence[tuple[LogEvidence, ExplainedError | None]]) -> None:
    if read and all(problem and not log.sightings and log.lines <= 1 for log, problem in read):
        raise next(problem for _, problem in read if problem)


@dataclass(frozen=True, kw_only=True)
class LogFile:
    """One log: its name as shown to the user, and its bytes in chunks, decompressed, read once."""

    name: str
    chunks: Iterator[bytes]


CHUNK = 1 << 20
MAX_FILES = 4096
STDIN = "-"
_SHOWN = 200

_LOG_NAME = re.compile(
    r".*\.(?:log|txt|out|err|stdout|stderr)(?:[.-]?\d+)?(?:\.(?:gz|zst|xz|bz2))?|(?:stdout|stderr|output)(?:\.\d+)?"
)
# What is no log by its name, though it may begin as text: what it quotes is none of the run, and weights are huge.
_NO_LOG = frozenset({
    ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".md", ".py", ".rst", ".sh", ".toml", ".yaml", ".yml",
    ".arrow", ".bin", ".gguf", ".npy", ".npz", ".onnx", ".parquet", ".pkl", ".pt", ".pth", ".safetensors",
})  # fmt: skip
_LISTED = 8  # files in one note
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_ELF, _ZIP = b"\x7fELF", b"PK\x03\x04"
_CONTROLS = bytes({*range(1, 32), 127} - set(b"\b\t\n\v\f\r\x1b"))  # that no log has but by accident
_SAMPLE, _TEXT_SHARE = 4096, 0.95  # first bytes of a file, and how many of them are others where it is text


def open_logs(targets: Sequence[str]) -> Iterator[LogFile]:
    """Yield the logs of each target in order: a file, `-` for the standard input, or a folder.

    A folder gives its files but for source code. The chunks of each are valid until the next is asked for.
    Raises BadInput when a target does not exist or cannot be read, also from the chunks where a file is damaged, or is
    one of a folder that is not read.
    """
    for target in targets:
        if target == STDIN:
            name = "(standard input)"
            _refuse_endless(sys.stdin.buffer, name)
            yield LogFile(name=name, chunks=_chunks(_rest(sys.stdin.buffer), name))
            continue
        logs, left_out = _found(Path(target))
        for path in logs:
            try:
                stream = _opened(path)
            except BadInput as error:
                if path == Path(target):
                    raise
                left_out.append((path, error))
                continue
            with stream:
                _refuse_endless(stream, str(path))
                yield LogFile(name=str(path), chunks=_chunks(_pieces(stream), str(path)))
        yield from (LogFile(name=str(path), chunks=_refused(error)) for path, error in left_out)


def _refused(error: BadInput) -> Iterator[bytes]:
    """Raise why a file or folder is not read, where its bytes are asked for."""
    yield b""
    raise error


def log_files(target: Path) -> list[Path]:
    """Return the file itself, or the files of a folder that may be logs; raises BadInput if there is none."""
    return _found(target)[0]


def _found(target: Path) -> tuple[list[Path], list[tuple[Path, BadInput]]]:
    """Return the files that are read of a target, and what of it is not and why; raises BadInput if none is.

    In one of our runs only what is named as a log is the workload's. So it is where there are too many files.
    """
    try:
        if not target.is_dir():
            return [target], []
    except OSError as error:
        raise unreadable(target, error) from None
    files, left_out = _below(target)
    named = [path for path in files if _LOG_NAME.fullmatch(path.name)]
    logs, why = [path for path in files if path.suffix.lower() not in _NO_LOG] or files, "source code, settings or data"
    of_run = _in_a_run(target)
    if named and (of_run or len(logs) > MAX_FILES):
        logs, why = named, f"at most {MAX_FILES} files are read at once"
    if not of_run and (unread := sorted({*files} - {*logs})):
        shown = ", ".join(str(path.relative_to(target)) for path in unread[:_LISTED])
        shown += ", ..." if len(unread) > _LISTED else ""
        problem = BadInput(f"not read ({why}): {shown}", next_step="give a file itself to have it read")
        left_out.append((target, problem))
    if not logs and left_out:
        raise left_out[0][1]
    if not logs:
        raise BadInput(
            f"{target} holds no file of a workload; records of vdbg-env below it are not read",
            next_step="give the folder that holds the logs, a log file, or one run: vdbg-env runs list",
        )
    if len(logs) > MAX_FILES:
        raise BadInput(f"{target} holds {len(logs)} logs; at most {MAX_FILES} are read at once")
    return logs, left_out


def _in_a_run(target: Path) -> bool:
    place = target.absolute()
    return any(os.path.isfile(folder / "run.json") for folder in (place, *place.parents))  # noqa: PTH113 (never raises)


def _below(folder: Path) -> tuple[list[Path], list[tuple[Path, BadInput]]]:
    """Return the files below a folder, but of none of our runs in it (their logs are of other attempts), and what
    cannot be read.
    """
    from vdbg_env.record.runs import INDEX  # for folders alone

    files: list[Path] = []
    left_out: list[tuple[Path, BadInput]] = []

    def closed(error: OSError) -> None:
        left_out.append((Path(error.filename), unreadable(error.filename, error)))

    for place, folders, names in os.walk(folder, onerror=closed):
        folders[:] = [name for name in folders if not os.path.isfile(Path(place, name, "run.json"))]  # noqa: PTH113
        for path in (Path(place, name) for name in names if name != INDEX):
            try:
                regular = stat.S_ISREG(path.stat().st_mode)
            except OSError as error:
                left_out.append((path, unreadable(path, error)))
                continue
            if regular:
                files.append(path)
            else:
                problem = BadInput(f"{path} is a pipe, a socket or a device", next_step="it was not read")
                left_out.append((path, problem))
    return sorted(files), left_out


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise BadInput(
            f"{path} does not exist", next_step="give a log file, a folder of logs, or - for stdin"
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None


def _refuse_endless(stream: BinaryIO, name: str) -> None:
    """Raise BadInput for a device other than a terminal and /dev/null: /dev/zero has no end."""
    mode = os.fstat(stream.fileno())
    device = stat.S_ISCHR(mode.st_mode) or stat.S_ISBLK(mode.st_mode)
    if device and not stream.isatty() and mode.st_rdev != Path(os.devnull).stat().st_rdev:
        raise BadInput(
            f"{name} is a device, not a log", next_step="give a log file, a folder of logs, or - for stdin or a pipe"
        )


def _chunks(raw: Iterator[bytes], name: str) -> Iterator[bytes]:
    """Read to the end as UTF-8. The first bytes, not the name, say whether a log is compressed or UTF-16."""
    try:
        head, raw = _head(raw)
        if packing_of(head):
            from vdbg_env.crash.packed import expanded  # for the few logs that are packed

            head, raw = _head(expanded(raw, head, name))
        # A zero byte is no text: a disk that lost its power leaves blocks of them, and UTF-16 without its mark is ASCII
        # with one next to each letter.
        _refuse_binary(head, name)
        yield from (data.replace(b"\0", b"") for data in (_utf8(raw) if head.startswith(_UTF_16) else raw))
    except EOFError as error:
        raise BadInput(f"{name} is damaged: {error}", cause="the file was cut while it was written or copied") from None
    except OSError as error:
        raise unreadable(name, error) from None


def _refuse_binary(head: bytes, name: str) -> None:
    """Raise BadInput for a file whose first bytes show that it is no text, with the command that reads such a file."""
    logs = "give a log file, a folder of logs, or - for stdin"
    if head.startswith(_ELF):
        from gpucore.elf import EM_CUDA  # for the few targets that are no log
        from vdbg_env.record.dump_files import kind_of

        match kind_of(head):
            case "gpu-core":
                kind, command = "the core dump of a GPU", f"vdbg-env core {quoted(name)}"
            case "host-core":
                kind, command = "the core dump of a process", f"gdb -c {quoted(name)}"
            case _:
                of_gpu = head[18:20] == EM_CUDA.to_bytes(2, "little")
                kind, command = "device code" if of_gpu else "a program or a library", f"vdbg-env verify {quoted(name)}"
        raise BadInput(f"{name} is {kind}, not a log", next_step=command)
    if head.startswith(_ZIP) or head[257:262] == b"ustar":
        raise BadInput(f"{name} is an archive, not a log", next_step=f"unpack it and {logs}")
    start = head[:_SAMPLE].replace(b"\0", b"")
    if not head.startswith(_UTF_16) and len(start.translate(None, _CONTROLS)) < _TEXT_SHARE * len(start):
        raise BadInput(f"{name} is a binary file, not a log", next_step=logs)


def _head(raw: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    head = next(filter(None, raw), b"")
    return head, chain((head,), raw)


def _utf8(raw: Iterator[bytes]) -> Iterator[bytes]:
    """Recode UTF-16, as PowerShell writes it (`kubectl logs POD > pod.log`)."""
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    for data in raw:
        yield decoder.decode(data).encode()
    yield decoder.decode(b"", final=True).encode()


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    """Yield a file as long as it is now, without its holes: others may write faster than this is read.

    A log that was cut to nothing while its writer kept its place (logrotate's `copytruncate`) begins with a hole that
    is as long as all that was written before.
    """
    size, at = os.fstat(stream.fileno()).st_size, 0
    if not size:  # a pipe, or a file of the kernel
        yield from _rest(stream)
    while at < size:
        try:
            at = os.lseek(stream.fileno(), at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole follows, or it has been cut
                return
            raise
        data = os.pread(stream.fileno(), min(CHUNK, size - at), at)
        if not data:
            return
        yield data
        at += len(data)


def _rest(stream: BinaryIO) -> Iterator[bytes]:
    while chunk := stream.read(CHUNK):
        yield chunk


def triage_text(triage: Triage, runbook: str | None) -> str:
    """Return the verdict as lines for a terminal, the answer first, and `runbook` to start it if it is not None."""
    root, failure = triage.root_cause, triage.failure
    sure = "" if failure.name == UNKNOWN else f"; confidence {triage.confidence:.0%}"
    lines = [f"{failure.name}  ({triage.said}{sure})"]
    if triage.failed is False:
        ended = "and an orderly shutdown" if any(log.shut_down for log in triage.logs) else "but not how it ended"
        lines = [f"no failure found: the log shows work, {ended}  (class {failure.name}{sure})"]
        for file, (number, text) in islice(((log.file, log.work) for log in triage.logs if log.work), 1):
            lines += ["", f"  {file}:{number}", f"    {_short(text)}"]
    if root:
        lines += ["", f"  {root.file}:{root.line}", f"    {_short(root.text)}"]
        unproven = "; unproven rule" if root.record and not root.record.answers else ""
        wording = root.origin if root.origin == GENERIC else f"wording of {root.origin}"
        lines.append(f"  known from {root.how_known}; {wording}{unproven}")
    for name, value in (("rank", triage.rank), ("process", triage.process), ("kernel", triage.kernel)):
        if value is not None:
            lines.append(f"  {name}: {value}")
    lines += _by_packs(triage)
    if triage.alternatives:
        lines += ["", "also seen or possible:", *(f"  {_alternative(other)}" for other in triage.alternatives)]
    if triage.remedies:
        lines += ["", *(f"try: {r.do}  ({r.releases}; {r.source})" for r in triage.remedies)]
    if triage.notes:
        lines += ["", *(f"note: {note}" for note in triage.notes)]
    steps = _next_steps(triage, runbook)
    for step in steps:
        lines += ["", f"next: {step}"]
    if failure.runbook and not steps:
        lines += ["", f"next: do what would settle it; no runbook is called {failure.runbook} here"]
    return "".join(f"{printable(line)}\n" for line in lines)  # a name of a log may have a line break


def _next_steps(triage: Triage, runbook: str | None) -> list[str]:
    """Return the commands to type next, the first one first: text and JSON have the same."""
    start = f"vdbg-env runbook {runbook} -- COMMAND" if runbook else None
    return [step for step in (triage.fix, start) if step]


def _by_packs(triage: Triage) -> Iterator[str]:
    if not triage.lines:
        return
    from vdbg_env.crash.places import chain_lines

    for found in triage.lines:
        yield ""
        yield f"  +{found.offset:#x} on {', '.join(found.archs)}, by the line table of {found.build}:"
        yield from chain_lines(found.chain, {}, indent="    ")
        yield "    by name and offset alone: the code that ran was not compared; a core dump would be"


def _alternative(other: Alternative) -> str:
    where = f"  {other.file}:{other.line}" if other.file else ""
    why = "an effect of the above" if other.effect else f"confidence {other.confidence:.0%}"
    return f"{other.failure} ({why}){where}"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


# JSON: docs/schemas/triage-v1.schema.json is the contract and says what each field means.


def triage_json(triage: Triage, runbook: str | None) -> str:
    """Return the verdict as the JSON document that `vdbg-env triage --json` prints; `runbook` as in `triage_text`."""
    root = triage.root_cause
    return json_text(
        {
            "schema": "vdbg-env/triage/v1",
            "class": triage.failure.name,
            "runbook": triage.failure.runbook,
            "confidence": triage.confidence,
            "root_cause": root
            and {
                "line": root.line, "text": root.text, "file": root.file, "rule": root.rule, "source": root.origin,
                "how_known": root.how_known, "record": root.record and asdict(root.record),
            },
            "title": triage.title,
            "next": next(iter(_next_steps(triage, runbook)), None),
            "rank": triage.rank,
            "process": triage.process,
            "kernel": triage.kernel,
            "lines": [_line_json(one) for one in triage.lines],
            "alternatives": [
                {
                    "class": other.failure, "confidence": other.confidence, "effect": other.effect, "file": other.file,
                    "line": other.line, "text": other.text,
                }
                for other in triage.alternatives
            ],
            "notes": triage.notes,
            "remedies": [asdict(remedy) for remedy in triage.remedies],
            "logs": [{"file": log.file, "lines": log.lines} for log in triage.logs],
        }
    )  # fmt: skip


def _line_json(found: LinesByName) -> dict[str, object]:
    from vdbg_env.crash.places import chain_json

    return {
        "how_known": found.how_known, "function": found.function, "offset": hex(found.offset), "archs": found.archs,
        "build": found.build, "pack": found.pack, "chain": chain_json(found.chain, {}),
    }  # fmt: skip
