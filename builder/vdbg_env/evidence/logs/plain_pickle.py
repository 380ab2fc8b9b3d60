"""Read a pickle of plain data without running it: no class is looked up, no function is called.

`pickle.loads` runs what the file asks for, and the file was written by the workload. Here the opcodes are read one by
one, and one that would make an object is refused.
"""

from __future__ import annotations

import pickletools
from typing import Any

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = frozenset(
    {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
    | {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES"}
)
_EMPTY = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_KEYS = (str, bytes, int, float, type(None))
_MOST_BITS = 1024  # Python prints no number of thousands of digits
_NOTHING = frozenset({"PROTO", "FRAME", "STOP"})


class NotPlainData(ValueError):
    """The bytes are no pickle, a cut one, or one that makes objects."""


def plain_data(data: bytes) -> Any:
    """Return the lists, dictionaries, tuples, texts and numbers of a pickle; raises NotPlainData."""
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(data):
            machine.step(opcode.name, argument)
        (value,) = machine.stack
    except NotPlainData:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise NotPlainData(f"not a whole pickle: {error}") from None
    return value


class _Machine:
    """The stack, the marks in it, and what was memorised."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        """Do one opcode; raises NotPlainData for one that makes an object."""
        stack = self.stack
        if name in _VALUES:
            if isinstance(argument, int) and argument.bit_length() > _MOST_BITS:
                raise NotPlainData(f"a number of {argument.bit_length()} bits")
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self._memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name not in _NOTHING:
            self._gather(name)

    def _gather(self, name: str) -> None:
        stack = self.stack
        if name in _TUPLES:
            items = stack[-_TUPLES[name] :]
            stack[-_TUPLES[name] :] = [tuple(items)]
        elif name in ("TUPLE", "LIST", "DICT"):
            items = self._marked()
            stack.append(tuple(items) if name == "TUPLE" else items if name == "LIST" else _pairs(items))
        elif name in ("APPEND", "APPENDS"):
            items = [stack.pop()] if name == "APPEND" else self._marked()
            stack[-1].extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            value, key = (stack.pop(), stack.pop()) if name == "SETITEM" else (None, None)
            items = [key, value] if name == "SETITEM" else self._marked()
            stack[-1].update(_pairs(items))
        else:
            raise NotPlainData(f"{name} would make an object or call a function")

    def _marked(self) -> list[Any]:
        at = self._marks.pop()
        items = self.stack[at:]
        del self.stack[at:]
        return items


def _pairs(items: list[Any]) -> dict[Any, Any]:
    # To hash a tuple in a million tuples overflows the interpreter's stack, which ends it.
    if not all(isinstance(key, _KEYS) for key in items[::2]):
        raise NotPlainData("a dictionary with other keys than texts and numbers")
    return dict(zip(items[::2], items[1::2], strict=True))
