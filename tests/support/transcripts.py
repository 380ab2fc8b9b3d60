"""Compare what our readers extract from a tool's transcript with what a right reader must extract.

A fact that is expected to be null or empty must not be asserted. Every other one is either read, missed (the reader
says nothing) or wrong (the reader says something else).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, Literal

from vdbg_env.build.cuobjdump import parse_listing
from vdbg_env.common.programs import tool_version
from vdbg_env.evidence.cuda_gdb import parse_cuda_gdb
from vdbg_env.evidence.log_line import unwrap
from vdbg_env.evidence.nccl import nccl_findings, parse_nccl_log
from vdbg_env.evidence.python_text import parse_host_stacks
from vdbg_env.evidence.sanitizer import parse_sanitizer
from vdbg_env.evidence.system import DriverProgress, parse_kernel_log, read_driver_progress
from vdbg_env.run.core_code import read_listing

Outcome = Literal["read", "missed", "wrong"]


@dataclass(frozen=True)
class Fact:
    """One expected fact of one transcript and how the reader did."""

    file: str
    name: str
    outcome: Outcome
    wanted: Any
    got: Any


# What transcripts say and nothing here asks for.
_NOT_ASKED_FOR = ("error_offset", "global_memory_bytes", "host_frames", "leaked_bytes")


def facts(entry: Mapping[str, Any]) -> Iterator[Fact]:
    """Yield every fact that an entry of the index expects."""
    seen = _VIEWS[entry["parser"]](entry["text"])
    for name, wanted in entry["expect"].items():
        for path, want, got in _compare(name, wanted, seen):
            if path.rpartition(".")[2].startswith(_NOT_ASKED_FOR):
                continue
            yield Fact(entry["file"], path, _outcome(path, want, got), want, got)


def _compare(name: str, wanted: Any, seen: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    got = seen.get(name)
    if isinstance(wanted, list) and wanted and isinstance(wanted[0], dict):
        if name not in _PARTIAL:
            yield f"{name}.count", len(wanted), len(got or ())
        for index, inner in enumerate(wanted):
            item = (got or [])[index] if index < len(got or []) else {}
            for key, value in inner.items():
                yield f"{name}[{index}].{key}", value, _derived(item, key)
    elif isinstance(wanted, dict) and name == "at":
        for address, inner in wanted.items():
            for key, value in inner.items():
                yield f"at.{address}.{key}", value, (got or {}).get(address, {}).get(key)
    elif isinstance(wanted, dict):
        for key, value in wanted.items():
            yield f"{name}.{key}", value, (got or {}).get(key)
    else:
        yield name, wanted, got if name in seen else _derived(seen, name)


def _derived(item: Mapping[str, Any], key: str) -> Any:
    for suffix in ("_starts", "_at_least", "_contains"):
        if key.endswith(suffix) and key not in item:
            return item.get(key.removesuffix(suffix))
    return item.get(key)


def _outcome(path: str, wanted: Any, got: Any) -> Outcome:
    got = list(got) if isinstance(got, tuple) else got
    if wanted is None or wanted == []:
        return "read" if not got else "wrong"
    if path.endswith("_starts"):
        right = isinstance(got, str) and got.startswith(wanted)
    elif path.endswith("_at_least"):
        right = (len(got) if isinstance(got, list) else got or 0) >= wanted
    elif path.endswith("_contains"):
        said = got if isinstance(got, list) else [got or ""]
        right = any(wanted in str(one) for one in said)
    else:
        right = got == wanted
    if right:
        return "read"
    return "missed" if got in (None, [], {}, "") or (path.endswith((".count", "_count")) and got < wanted) else "wrong"


_PARTIAL = {"records", "frames"}  # lists of which the index gives the first only


def _plain(value: Any) -> dict[str, Any]:
    if not is_dataclass(value) or isinstance(value, type):
        raise TypeError(value)
    return asdict(value)


def _rows(values: Sequence[Any]) -> list[dict[str, Any]]:
    return [{k: list(v) if isinstance(v, tuple) else v for k, v in _plain(value).items()} for value in values]


def parse_driver_progress(text: str) -> DriverProgress:
    """Return what the driver's lines in a text report, as a run does that gets them from a log."""
    return read_driver_progress(unwrap(line) for line in text.splitlines())


def _driver(text: str) -> dict[str, Any]:
    seen = parse_driver_progress(text)
    exceptions = _rows(seen.exceptions)
    for row, exception in zip(exceptions, seen.exceptions, strict=True):
        row |= {"kernel": exception.kernel, "frames": len(exception.stack)}
        row["frame_pc"] = exception.stack[0].pc if exception.stack else None
    return _plain(seen) | {"exceptions": exceptions, "begun": getattr(seen, "begun", None)}


def _cuda_gdb(text: str) -> dict[str, Any]:
    seen = parse_cuda_gdb(text)
    place = seen.error_place or (seen.frames[0].place if seen.frames else None)
    frames = _rows(seen.frames)
    for row, frame in zip(frames, seen.frames, strict=True):
        row["place"] = f"{frame.place.file}:{frame.place.line}" if frame.place else None
    focus = next(iter(_rows([seen.focus])), None) if seen.focus else None
    return _plain(seen) | {
        "focus": focus,
        "frames": frames,
        "kernels": _rows(seen.kernels),
        "kernel_count": len(seen.kernels),
        "lane_count": len(seen.lanes),
        "warp_count": len(seen.warps),
        "device_count": len(seen.devices),
        "error_place": f"{seen.error_place.file}:{seen.error_place.line}" if seen.error_place else None,
        "finding_place": f"{place.file}:{place.line}" if seen.exception and place else None,
        "finding_kernel": seen.kernel if seen.exception else None,
    }


def _sanitizer(text: str) -> dict[str, Any]:
    seen = parse_sanitizer(text)
    records = _rows(seen.records)
    for row, record in zip(records, seen.records, strict=True):
        first, second = [*record.places, None, None][:2]
        row |= {"api": record.api_call, "function": first.function if first else None}
        row |= {"offset": first.offset if first else None, "second_function": second.function if second else None}
        row["place"] = f"{first.frame.file}:{first.frame.line}" if first and first.frame else None
        row["second_place"] = f"{second.frame.file}:{second.frame.line}" if second and second.frame else None
    return _plain(seen) | {"records": records, "record_count": len(records), "tool": seen.tool and seen.tool.value}


def _kernel_log(text: str) -> dict[str, Any]:
    seen = parse_kernel_log(text)
    unknown = [x.code for x in seen.xids if x.meaning.name == "Xid not in the table"]
    root = seen.root.code if seen.root else None
    return _plain(seen) | {"xids": _rows(seen.xids), "root": root, "unknown": unknown}


def _nccl(text: str) -> dict[str, Any]:
    seen = parse_nccl_log(text.splitlines())
    findings = [finding.message for finding in nccl_findings(seen)]
    return _plain(seen) | {"warnings": len(seen.warnings), "warning": list(seen.warnings), "finding": findings}


def _stacks(text: str) -> dict[str, Any]:
    seen = parse_host_stacks(text.splitlines())
    threads = [
        {
            "name": t.name,
            "active": t.active,
            "frames": len(t.frames),
            "top": f"{t.frames[0].file}:{t.frames[0].line}" if t.frames else None,
        }
        for t in seen.threads
    ]
    return {"threads": threads, "thread_count": len(threads), "waiting": list(seen.waiting_in)}


def _nvdisasm(text: str) -> dict[str, Any]:
    rows = list(read_listing(text.splitlines()))
    at = {
        f"{row.address:x}": {"text": row.text, "chain": [f"{file}:{line}" for file, line in row.chain]} for row in rows
    }
    return {"count": len(rows), "at": at}


def _cuobjdump(text: str) -> dict[str, Any]:
    return _plain(parse_listing(text, ""))


_VIEWS: dict[str, Callable[[str], Mapping[str, Any]]] = {
    "driver_progress": _driver,
    "cuda_gdb": _cuda_gdb,
    "sanitizer": _sanitizer,
    "kernel_log": _kernel_log,
    "nccl_log": _nccl,
    "host_stacks": _stacks,
    "nvdisasm": _nvdisasm,
    "cuobjdump": _cuobjdump,
    "tool_version": lambda text: {"version": tool_version(text)},
}
