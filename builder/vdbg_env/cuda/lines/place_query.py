"""Reads a place in device code as tools print it, and finds the functions that it may mean.

cuda-gdb prints `0x7fffd9001140 <void kern<float>(float*, int, float)+320>`, compute-sanitizer
`kern(float *, int)+0x120 [in file.cu:6]` or `kern():0x160 in file.cu:6`, profilers `kern<file.cu>+0x140`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from vdbg_env.common.errors import BadInput
from vdbg_env.cuda.lines.code_map import Function
from vdbg_env.cuda.symbols.demangling import demangle, short_name

_NUMBER = r"(?:0[xX][0-9a-fA-F]+|[0-9]+)"
_BARE = re.compile(rf"^\+?({_NUMBER})$")
_BARE_HEX = re.compile(r"^(?=.*[0-9])[0-9a-fA-F]{8,16}$")
_GDB = re.compile(rf"^({_NUMBER})\s*<(.*)>$")
_NAMED = re.compile(rf"^(.+?)\s*(?:\+|:)\s*({_NUMBER})>?(?:\s+(?:\[?in|at)\s.*)?$", re.DOTALL)
# A name alone is its first instruction; a word with a dot or a slash is a file that was given first.
_FUNCTION = re.compile(r"[A-Za-z_$][\w$: *&]*(?:[<(].*[>)])?", re.DOTALL)
_MANGLED = re.compile(r"_ZN?[KVr]*")
_LENGTH = re.compile(r"[1-9][0-9]{0,4}")
_FILE = re.compile(r"<([^<>]*\.(?:cu|cuh|h|hh|hpp|c|cc|cpp|cxx|py|ptx))>$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class PlaceQuery:
    """What was asked for: a function by name with an offset in bytes, or, without a name, an absolute address.

    `file` is a source file that the text named, a hint where several functions have the name.
    """

    name: str | None
    value: int
    file: str | None = None


def parse_place(text: str, kernel: str | None = None) -> PlaceQuery:
    """Read a place; with `kernel` given, a bare number is an offset in it, else it is an absolute address.

    A function's name without an offset is where the function begins.

    Raises BadInput when the text is no place.
    """
    text = text.strip()
    bare = _BARE.match(text)
    if bare or _BARE_HEX.match(text):
        name, file = _split_file(kernel) if kernel else (None, None)
        return PlaceQuery(name=name, value=_number(bare[1]) if bare else int(text, 16), file=file)
    gdb = _GDB.match(text)
    named = _NAMED.match(gdb[2] if gdb else text.removeprefix("<"))
    if named is None and not kernel and _FUNCTION.fullmatch(text):
        name, file = _split_file(text)
        return PlaceQuery(name=name, value=0, file=file)
    if named is None:
        raise BadInput(
            f"{text!r} is neither an address, an offset, nor a function",
            cause="a blank or bracket that the shell took (quote the whole of it), or FILE and PLACE changed about",
            next_step="vdbg-env locate 'void kern<float>(float*, int)+0x140' FILE",
        )
    name, file = _split_file(named[1])
    return PlaceQuery(name=kernel or name, value=_number(named[2]), file=file)


def matching(functions: Iterable[Function], name: str) -> tuple[Function, ...]:
    """Return the functions that a name means, by the closest way of naming that fits any of them.

    In order: the mangled name, the whole demangled one, that without return type, without parameters, and last without
    template arguments. Blanks do not count: the sanitizer prints `float *` where the demangler prints `float*`.
    """
    wanted = _plain(name)
    known = [(function, _ways(function.name)) for function in functions]
    for way in range(_WAYS):
        found = tuple(function for function, ways in known if ways[way] == wanted)
        if found:
            return found
    return ()


def may_mean(mangled: str, name: str) -> bool:
    """Return whether a name means a function in any of the ways of `matching`, by the function's mangled name."""
    return _plain(name) in _ways(mangled)


def identifier_in(name: str) -> str:
    """Return the part of a name that its mangled form must hold as it stands, for a quick first look."""
    if name.startswith(("_Z", "$")):
        return name
    bare = re.sub(r"<.*", "", short_name(name) if "(" in name or "<" in name else name)
    words = re.findall(r"[A-Za-z_][A-Za-z0-9_]*", bare.rpartition("::")[2])
    return words[-1] if words and "operator" not in bare else ""


def mangled_stem(name: str) -> str:
    """Return a mangled name up to its template arguments and parameters: the same for every instance of a template."""
    start = _MANGLED.match(name)
    if start is None:
        return name
    at = start.end()
    while number := _LENGTH.match(name, at):
        at = min(number.end() + int(number[0]), len(name))
    return name[:at]


_WAYS = 5


def _ways(mangled: str) -> tuple[str, ...]:
    demangled = demangle(mangled)
    short = short_name(demangled)
    start = demangled.find(short.partition("<...>")[0])
    without_return = demangled[start:] if start > 0 else demangled
    without_parameters = re.sub(r"\(.*$", "", without_return) if "(anonymous" not in without_return else short
    bare = re.sub(r"<.*$", "", short)
    ways = (mangled, demangled, without_return, without_parameters, bare)
    return tuple(_plain(way) for way in ways)


def _plain(name: str) -> str:
    return "".join(name.split())


def _split_file(name: str) -> tuple[str, str | None]:
    """Take a source file in angle brackets off the end of a name; template arguments stay."""
    file = _FILE.search(name)
    return (name[: file.start()].strip(), file[1]) if file else (name.strip(), None)


def _number(text: str) -> int:
    return int(text, 16) if text[:2].lower() == "0x" else int(text)
