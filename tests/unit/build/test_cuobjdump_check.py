"""A witness whose list broke off is asked about single cubins; only what it says of them can explain it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gpucore.elf import Elf
from gpucore.lineinfo import Witness
from tests.builders.cubin import cubin
from tests.builders.fatbin import EntrySpec, container, host_library
from vdbg_env.build.cuobjdump import cross_examine
from vdbg_env.common.programs import Completed
from vdbg_env.crash.files import Buffer

LIBRARY = host_library(
    container(*(EntrySpec(payload=cubin(f"k{i}", arch=arch), arch=arch) for i in range(20) for arch in (80, 90)))
)
BROKE_OFF = Witness(tool="cuobjdump", listed=1, rc=1, agrees=False, reason="it stopped after 1 of 40 cubins")


@dataclass
class FakeScratch:
    """Keeps what was lent, under the path it was lent at."""

    lent: dict[str, bytes] = field(default_factory=dict)

    @contextmanager
    def lend(self, data: Buffer, suffix: str) -> Iterator[Path]:
        path = f"/scratch/{len(self.lent)}{suffix}"
        self.lent[path] = bytes(data)
        yield Path(path)


@dataclass
class FakeCuobjdump:
    """Prints the section table of a lent cubin, unless its architecture is `unreadable`; renames a section if told."""

    scratch: FakeScratch
    unreadable: str = "sm_none"
    renames: bool = False

    def head(self, program: str) -> bytes:
        return b""

    def which(self, program: str) -> str | None:
        return f"/bin/{program}"

    def run(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> Completed:
        tool, option, path = argv
        assert (tool, option) == ("/bin/cuobjdump", "-elf")
        if self.unreadable in path:
            said = f"cuobjdump info    : File '{path}' does not contain device code\n"
            return Completed(argv=tuple(argv), code=255, stdout="", stderr=said)
        elf = Elf(self.scratch.lent[path])
        names = [elf.name(s) + ("x" if self.renames else "") for s in elf.sections[1:]]
        rows = "".join(
            f"{i:5x}     40    103  0  1   PROGBITS        0    0        0 {n}\n" for i, n in enumerate(names, 1)
        )
        return Completed(argv=tuple(argv), code=0, stdout=f"\nSections:\nIndex Offset\n{rows}\n.section", stderr="")


def examine(**faults: str | bool) -> Witness:
    scratch = FakeScratch()
    programs = FakeCuobjdump(scratch, **faults)  # type: ignore[arg-type]
    witness = cross_examine(BROKE_OFF, LIBRARY, "/bin/cuobjdump", programs=programs, scratch=scratch)
    assert len(scratch.lent) == 8
    return witness


def test_a_cubin_it_cannot_read_by_itself_either_explains_where_it_stopped() -> None:
    witness = examine(unreadable="sm_90")
    assert (witness.explained, witness.agrees) == (True, False)
    assert "asked about 8 cubins one by one, it shows the same section table for 4, none for 4 (sm_90)" in (
        witness.reason or ""
    )


def test_a_list_that_broke_off_at_a_cubin_it_can_read_stays_unexplained() -> None:
    assert not examine().explained
    assert not examine(unreadable="sm_80").explained


def test_another_section_table_is_never_explained_away() -> None:
    witness = examine(unreadable="sm_90", renames=True)
    assert not witness.explained
    assert "another for 4" in (witness.reason or "")
