"""What is read, what is left out, when the witness is asked, and what it costs when it cannot be."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gpucore.fatbin import Compression
from gpucore.lineinfo import Verdict
from tests.builders.cubin import cubin
from tests.builders.elf import ElfSpec, build_elf
from tests.builders.fatbin import EntrySpec, container, host_library
from vdbg_env.build import prove
from vdbg_env.build.prove import VerifyRequest, verify_binaries
from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.programs import Completed
from vdbg_env.crash.files import BinaryFile, Scratch

GOOD = host_library(container(*(EntrySpec(payload=cubin(f"k{i}", lines=True)) for i in range(20))))
BAD = host_library(container(EntrySpec(payload=cubin("k"))))
HOST = host_library()
CUBINS = Path(__file__).parents[2] / "data" / "cubins"


@dataclass
class FakeSource:
    """A source of the files given, under the one target `here`."""

    files: Sequence[BinaryFile]

    @contextmanager
    def open(self, target: str) -> Generator[Iterator[BinaryFile], None, None]:
        assert target == "here"
        yield iter(self.files)


@dataclass
class FakePrograms:
    """A cuobjdump that lists `listed` cubins of whatever file."""

    path: str | None = "/bin/cuobjdump"
    listed: int = 20
    error: HostNotAble | None = None
    runs: list[Sequence[str]] = field(default_factory=list)

    def head(self, program: str) -> bytes:
        return b""

    def which(self, program: str) -> str | None:
        assert program == "cuobjdump"
        return self.path

    def run(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> Completed:
        self.runs.append(argv)
        if self.error:
            raise self.error
        listing = "".join(f"ELF file {i:4}: k.{i}.sm_90.cubin\n" for i in range(self.listed))
        return Completed(argv=tuple(argv), code=0, stdout=listing, stderr="")


def file(name: str, data: bytes, *, asked_for: bool = False) -> BinaryFile:
    return BinaryFile(name=name, data=data, path=Path(name), asked_for=asked_for)


REQUEST = VerifyRequest(targets=("here",), threads=2)


def test_a_good_file_with_an_agreeing_witness() -> None:
    programs = FakePrograms()
    report = verify_binaries(REQUEST, source=FakeSource([file("good.so", GOOD)]), programs=programs, scratch=Scratch())
    assert report.verdict is Verdict.FULL
    assert report.counts.with_debug_line == 20
    assert [f.witness.agrees for f in report.files if f.witness] == [True]
    assert programs.runs == [["/bin/cuobjdump", "-all", "-lelf", "good.so"]]


def test_files_without_device_code_are_counted_only_unless_asked_for() -> None:
    source = FakeSource([file("host.so", HOST), file("named.so", HOST, asked_for=True), file("bad.so", BAD)])
    report = verify_binaries(REQUEST, source=source, programs=FakePrograms(path=None), scratch=Scratch())
    assert [(f.path, f.verdict) for f in report.files] == [
        ("named.so", Verdict.NO_DEVICE_CODE),
        ("bad.so", Verdict.NONE),
    ]
    assert report.without_device_code == 1


def test_one_damaged_file_does_not_stop_the_others() -> None:
    damaged = GOOD.replace(b"\x50\xed\x55\xba", b"\x51\xed\x55\xba")
    source = FakeSource([file("damaged.so", damaged), file("good.so", GOOD)])
    report = verify_binaries(REQUEST, source=source, programs=FakePrograms(), scratch=Scratch())
    assert [f.verdict for f in report.files] == [Verdict.UNREADABLE, Verdict.FULL]
    assert "no fat binary container here" in (report.files[0].problem or "")
    assert report.verdict is Verdict.UNREADABLE


def test_a_file_that_could_not_be_opened_is_reported() -> None:
    source = FakeSource([BinaryFile(name="closed.so", data=b"", problem="Permission denied")])
    report = verify_binaries(REQUEST, source=source, programs=FakePrograms(), scratch=Scratch())
    assert (report.files[0].verdict, report.files[0].problem) == (Verdict.UNREADABLE, "Permission denied")


def test_without_a_witness_at_hand_none_is_asked() -> None:
    report = verify_binaries(
        REQUEST, source=FakeSource([file("good.so", GOOD)]), programs=FakePrograms(path=None), scratch=Scratch()
    )
    assert report.files[0].witness is None


def test_the_witness_can_be_refused() -> None:
    programs = FakePrograms()
    request = VerifyRequest(targets=("here",), witness="none")
    verify_binaries(request, source=FakeSource([file("good.so", GOOD)]), programs=programs, scratch=Scratch())
    assert programs.runs == []


def test_a_witness_that_is_demanded_and_missing_is_an_error() -> None:
    request = VerifyRequest(targets=("here",), witness="cuobjdump")
    with pytest.raises(HostNotAble) as caught:
        verify_binaries(request, source=FakeSource([]), programs=FakePrograms(path=None), scratch=Scratch())
    assert "pip install nvidia-cuda-cuobjdump" in (caught.value.next_step or "")


def test_a_witness_that_outlasts_its_time_is_told_and_changes_no_verdict() -> None:
    programs = FakePrograms(error=HostNotAble("cuobjdump did not end within 600 seconds"))
    report = verify_binaries(REQUEST, source=FakeSource([file("good.so", GOOD)]), programs=programs, scratch=Scratch())
    witness = report.files[0].witness
    assert witness is not None
    assert (witness.agrees, witness.rc) == (False, None)
    assert report.verdict is Verdict.FULL


def test_each_file_is_told_before_it_is_read() -> None:
    told: list[tuple[str, float | None]] = []
    halves = [replace(file("good.so", GOOD), part=(0.0, 0.5)), replace(file("bad.so", BAD), part=(0.5, 1.0))]
    unknown = replace(file("more.so", BAD), part=None)
    verify_binaries(
        REQUEST, source=FakeSource([*halves, unknown]), programs=FakePrograms(), scratch=Scratch(),
        tell=lambda name, done: told.append((name, done)),
    )  # fmt: skip
    assert told[0] == ("good.so", 0.0)
    assert told[20] == ("good.so", 0.5), "each of its 20 line tables was counted"
    assert told[-1] == ("more.so", None)


def test_line_tables_are_read_by_other_processes_where_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    real = (CUBINS / "inline_chain_sm90.cubin").read_bytes()
    entries = [EntrySpec(payload=real, how=how) for how in (Compression.RAW, Compression.ZSTD, Compression.LZ4)]
    library = host_library(container(*entries, EntrySpec(payload=cubin("_Z1kv"), how=Compression.ZSTD)))
    source = FakeSource([file("lib.so", library)])
    expected = verify_binaries(REQUEST, source=source, programs=FakePrograms(path=None), scratch=Scratch())
    monkeypatch.setattr(prove, "_PROCESSES_FROM", 0)
    assert expected == verify_binaries(REQUEST, source=source, programs=FakePrograms(path=None), scratch=Scratch())
    assert expected.counts.with_debug_line == 3 and expected.verdict is Verdict.PARTIAL


def test_damage_that_another_process_finds_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove, "_PROCESSES_FROM", 0)
    host = host_library(container(EntrySpec(payload=build_elf(ElfSpec(machine=62)))))
    source = FakeSource([file("lib.so", host)])
    (report,) = verify_binaries(
        REQUEST, source=source, programs=FakePrograms(path=None), scratch=Scratch()
    ).files  # fmt: skip
    assert report.problem and "not a cubin: the ELF file is for machine 62" in report.problem
