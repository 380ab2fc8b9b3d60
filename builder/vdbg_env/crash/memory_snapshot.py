"""Read the allocator's snapshot that PyTorch pickles (`torch.cuda.memory._dump_snapshot`), and execute nothing.

A pickle is a program. This reader knows only the instructions that make numbers, texts, lists, tuples and dicts; the
first other one ends it. Source: CPython's pickletools and, for the fields, `torch/cuda/_memory_viz.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

from vdbg_env.common.errors import BadInput
from vdbg_env.crash.memory_map import MemoryMap, Region, disjoint

PICKLE: Final = b"\x80"
LARGEST_SNAPSHOT: Final = 256 << 20  # bytes
_MOST_STEPS: Final = 1_500_000  # about a second; a block takes 16
_MOST_BLOCKS: Final = 100_000
_AFTER_SEGMENTS: Final = "device_traces"  # the history, which may be far larger and is not needed
_ADDRESSES: Final = 1 << 64
_KINDS: Final = {"active_allocated": "used", "active_pending_free": "pending", "active_awaiting_free": "pending"}
_TEXTS: Final = {0x8C: ("<B", 1), 0x58: ("<I", 4), 0x8D: ("<Q", 8)}
_BYTES: Final = {0x43: ("<B", 1), 0x42: ("<I", 4), 0x8E: ("<Q", 8)}
_NUMBERS: Final = {0x4B: ("<B", 1), 0x4D: ("<H", 2), 0x4A: ("<i", 4), 0x47: (">d", 8)}
_CONSTANTS: Final = {0x4E: None, 0x88: True, 0x89: False, 0x29: ()}


def read_snapshot(data: bytes, file: str = "") -> MemoryMap:
    """Return the segments of a pickled snapshot as a map without names; raises BadInput for any other pickle."""
    if len(data) > LARGEST_SNAPSHOT:
        raise _refused(file, f"it has {len(data):,} bytes, and at most {LARGEST_SNAPSHOT:,} are read")
    try:
        document = _loaded(data)
    except (IndexError, KeyError, struct.error, ValueError, TypeError, MemoryError, OverflowError) as error:
        raise _refused(file, str(error) or type(error).__name__) from None
    segments = document.get("segments") if isinstance(document, dict) else document
    if not isinstance(segments, list):
        raise _refused(file, "it has no list of segments")
    try:
        blocks = disjoint(file, _blocks(segments))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _refused(file, f"a segment has another form: {error}") from None
    return MemoryMap(file=file, blocks=blocks, source="snapshot")


def _blocks(segments: list[Any]) -> Iterator[Region]:
    count = 0
    for segment in segments:
        start, size = _number(segment, "address"), _number(segment, "total_size")
        graph = tuple(segment.get("segment_pool_id") or (0, 0)) != (0, 0)
        at = start
        if not isinstance(segment["blocks"], list):
            raise TypeError("the blocks of a segment are no list")
        for block in segment["blocks"]:
            count += 1
            if count > _MOST_BLOCKS:
                raise ValueError(f"more than {_MOST_BLOCKS:,} blocks")
            address = _number(block, "address") if "address" in block else at
            length = _number(block, "size")
            if address < at or not length or address + length > start + size:
                raise ValueError(f"a block at {address:#x} is outside its segment")
            state = block["state"]
            kind = _KINDS.get(state, "free") if isinstance(state, str) else "free"
            yield Region(address=address, bytes=length, kind="graph" if graph and kind == "used" else kind)
            at = address + length


def _number(row: Mapping[str, Any], name: str) -> int:
    found = row[name]
    if isinstance(found, bool) or not isinstance(found, int):  # never its text: lists in lists can be made without end
        raise TypeError(f"{name} is no number")
    if not 0 <= found < _ADDRESSES:
        raise ValueError(f"{name} is no 64-bit number")
    return found


def _loaded(data: bytes) -> Any:
    """Return what a pickle makes; the history that follows the segments is not looked at."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: list[Any] = []
    at = 0
    for _ in range(_MOST_STEPS):
        op = data[at]
        at += 1
        if op == 0x94:  # MEMOIZE
            memo.append(stack[-1])
        elif op == 0x68:  # BINGET
            stack.append(memo[data[at]])
            at += 1
        elif op == 0x6A:  # LONG_BINGET
            stack.append(memo[int.from_bytes(data[at : at + 4], "little")])
            at += 4
        elif op in _NUMBERS:
            form, size = _NUMBERS[op]
            stack.append(struct.unpack_from(form, data, at)[0])
            at += size
        elif op == 0x8A:  # LONG1
            size = data[at]
            stack.append(int.from_bytes(data[at + 1 : at + 1 + size], "little", signed=True))
            at += 1 + size
        elif op == 0x28:  # MARK
            marks.append(len(stack))
        elif op == 0x7D:  # EMPTY_DICT
            stack.append({})
        elif op in {0x75, 0x73}:  # SETITEMS, SETITEM
            begin = marks.pop() if op == 0x75 else len(stack) - 2
            _set(stack[begin - 1], stack[begin:])
            del stack[begin:]
        elif op in _TEXTS or op in _BYTES:
            form, size = _TEXTS.get(op) or _BYTES[op]
            begin = at + size
            at = begin + struct.unpack_from(form, data, at)[0]
            if at > len(data):
                raise ValueError("it is cut off")
            text = data[begin:at].decode("utf-8", "surrogatepass") if op in _TEXTS else data[begin:at]
            if text == _AFTER_SEGMENTS and len(marks) == 1 and stack[marks[0] + 1 :]:
                return dict(zip(stack[marks[0] :: 2], stack[marks[0] + 1 :: 2], strict=False))
            stack.append(text)
        elif op in {0x65, 0x61}:  # APPENDS, APPEND
            begin = marks.pop() if op == 0x65 else len(stack) - 1
            if not isinstance(stack[begin - 1], list):
                raise ValueError("something is appended to what is no list")
            stack[begin - 1] += stack[begin:]
            del stack[begin:]
        elif op == 0x5D:  # EMPTY_LIST
            stack.append([])
        elif op in _CONSTANTS:
            stack.append(_CONSTANTS[op])
        elif op in {0x85, 0x86, 0x87, 0x74}:  # TUPLE1 to TUPLE3, TUPLE
            begin = marks.pop() if op == 0x74 else len(stack) - (op - 0x84)
            made = tuple(stack[begin:])
            del stack[begin:]
            stack.append(made)
        elif op in {0x71, 0x72}:  # BINPUT, LONG_BINPUT
            size = 1 if op == 0x71 else 4
            if int.from_bytes(data[at : at + size], "little") != len(memo):
                raise ValueError("what it keeps is not numbered in order")
            memo.append(stack[-1])
            at += size
        elif op in {0x80, 0x95}:  # PROTO, FRAME
            at += 1 if op == 0x80 else 8
        elif op == 0x2E:  # STOP
            return stack.pop()
        else:
            raise ValueError(f"instruction {op:#04x} at byte {at - 1} does more than make plain values")
    raise ValueError(f"it takes more than {_MOST_STEPS:,} steps; dump it without stacks")


def _set(target: object, items: list[Any]) -> None:
    if not isinstance(target, dict):
        raise ValueError("something is set in what is no dict")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, str):  # numbers can be chosen that make a dict slow
            raise ValueError("a key is no text")
        target[key] = value


def _refused(file: str, why: str) -> BadInput:
    return BadInput(
        f"{file or 'the pickle'} is not a snapshot of PyTorch's allocator: {why}",
        cause="another pickle, or one that was changed; nothing of it was executed",
        next_step="torch.cuda.memory._dump_snapshot(FILE) writes one",
    )
