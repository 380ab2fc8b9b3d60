"""Reads CMake's compile commands of CUDA sources, and turns each into the command for one cubin with line info."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from vdbg_env.common.errors import BadInput

_TARGET_FOLDER: Final = re.compile(r"(?:^|/)CMakeFiles/([^/]+)\.dir/")
_GENCODE: Final = re.compile(r"arch=(compute_\w+),code=\[?([\w,]+)\]?$")
_ARCH: Final = re.compile(r"(?:sm|compute)_(\d+)")
# What a compile for one architecture, to a cubin, has no use for.
_DROPPED: Final = ("--compress-mode", "--threads", "-threads", "-MD", "-MMD")
_DROPPED_WITH_VALUE: Final = ("-o", "-MT", "-MF", "-MQ")


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A translation unit: its source, the CMake target (the extension) that it belongs to, and how it is compiled.

    `codes` are pairs of virtual architecture and code, as in ("compute_90a", "sm_90a"), in the order of the command.
    """

    source: str
    extension: str
    folder: str
    argv: tuple[str, ...]
    codes: tuple[tuple[str, str], ...]

    @property
    def targets(self) -> tuple[str, ...]:
        """What its object holds, named as `fatbin.Entry.target` does."""
        return tuple(code for _, code in self.codes)

    @property
    def arch_list(self) -> str:
        """The value that nvcc gives to __CUDA_ARCH_LIST__: CUB puts it into the names of its kernels."""
        numbers = {int(found[1]) * 10 for virtual, _ in self.codes if (found := _ARCH.match(virtual))}
        return ",".join(str(number) for number in sorted(numbers))


def read_compile_commands(text: str) -> tuple[Unit, ...]:
    """Return the CUDA units of a `compile_commands.json`, in its order, which is the order in which they are linked.

    Raises BadInput when the text is not one.
    """
    try:
        rows = json.loads(text)
        return tuple(_units(rows))
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"compile_commands.json cannot be read: {error}", next_step="configure anew") from error


def cubin_argv(unit: Unit, target: str, output: str, flags: Sequence[str] = ("-lineinfo",)) -> tuple[str, ...]:
    """Return the unit's own command, changed to write the cubin of one target; raises KeyError for a target it lacks.

    Whatever decides about instructions stays as it is: definitions, include folders and their order, optimisation.
    """
    virtual = {code: virtual for virtual, code in unit.codes}[target]
    argv: list[str] = []
    words = iter(unit.argv)
    for word in words:
        if word in ("-gencode", "--generate-code", *_DROPPED_WITH_VALUE):
            next(words, None)
        elif word in ("-c", "--compile", "-dc", "--device-c"):
            argv.append("-cubin")
        elif not word.startswith((*_DROPPED, "--generate-code=", "-gencode=")):
            argv.append(word)
    return (*argv, "-gencode", f"arch={virtual},code={target}", *flags, "-o", output)


def _units(rows: list[dict[str, str]]) -> Iterator[Unit]:
    for row in rows:
        if PurePosixPath(row["file"]).suffix != ".cu":
            continue
        argv = tuple(row["arguments"]) if "arguments" in row else tuple(shlex.split(row["command"]))
        output = row.get("output") or argv[argv.index("-o") + 1]
        found = _TARGET_FOLDER.search(output)
        yield Unit(
            source=row["file"],
            extension=found[1] if found else "",
            folder=row["directory"],
            argv=argv,
            codes=tuple(_codes(argv)),
        )


def _codes(argv: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for before, word in zip(("", *argv), argv, strict=False):
        if before in ("-gencode", "--generate-code") or word.startswith(("--generate-code=", "-gencode=")):
            found = _GENCODE.search(word)
            if found:
                yield from ((found[1], code) for code in found[2].split(","))
