"""Pack the lines of units that were compiled again: the code they are found by is the stock wheel's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath

from vdbg_env.application.line_packs.pack import Packed, PackRequest, pack_lines
from vdbg_env.application.lines.build import LinesBuilt
from vdbg_env.application.ports.files import BinaryFile
from vdbg_env.common.errors import BadInput


def pack_built(result: LinesBuilt) -> Packed | None:
    """Return a pack of every cubin with code of the stock wheel; None when there is none.

    A function whose instructions differ is packed too: it is found by its own code, so never for the stock one.
    """
    cubins = dict(_cubins(result))
    if not cubins:
        return None
    release = f"{result.release.project} {result.release.version}"
    return pack_lines(PackRequest(targets=tuple(cubins), release=release), binaries=_InMemory(cubins))


def _cubins(result: LinesBuilt) -> Iterator[tuple[str, bytes]]:
    for unit in result.built:
        if unit.compiled.cubin is not None and unit.comparison and unit.comparison.identical:
            stem = PurePosixPath(unit.source).stem
            yield f"{unit.choice.library.extension}/{stem}.{unit.choice.target}.cubin", unit.compiled.cubin


class _InMemory:
    """A BinarySource over cubins that are in memory already."""

    def __init__(self, cubins: dict[str, bytes]) -> None:
        self._cubins = cubins

    @contextmanager
    def open(self, target: str) -> Iterator[Iterator[BinaryFile]]:
        if target not in self._cubins:
            raise BadInput(f"no cubin {target}")
        yield iter([BinaryFile(name=target, data=self._cubins[target], asked_for=True)])
