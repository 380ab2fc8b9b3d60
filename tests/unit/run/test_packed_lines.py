"""The runbooks' own steps take the lines of stock code from line packs, and say so."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders.core_builder import hang_core, illegal_address_core
from tests.support.line_packs import pack_of
from tests.unit.run.test_steps import Bench, promised
from vdbg_env.crash.line_packs import PackedLines, PackFolder
from vdbg_env.run.library import BuiltinSteps

SAME = "line table of a build with identical code (sample 1.0, nvcc 13.0.88)"


class PackedBench(Bench):
    """A bench whose built-ins have one line pack."""

    def steps(self) -> BuiltinSteps:
        plain = super().steps()
        pack = self.directory / "sample.lines"
        pack.write_bytes(pack_of("inline_chain_sm90"))
        return replace(plain, packed_lines=lambda: PackedLines([PackFolder(pack)]))


@pytest.fixture
def bench(tmp_path: Path) -> PackedBench:
    return PackedBench(tmp_path)


def lines(chain: object) -> list[str]:
    assert isinstance(chain, Sequence)
    return [str(frame).split(" in ")[0].rpartition(":")[2] for frame in chain]


def test_a_core_of_stock_code_is_decoded_with_lines(bench: PackedBench) -> None:
    core = bench.put("a.nvcudmp", illegal_address_core(lines=False))
    done = promised("decode-gpu-core", bench.use("decode-gpu-core", cores=[core]))
    assert done.results["has_lines"] is True
    assert lines(done.results["chain"]) == ["3", "13", "8", "19"]
    assert SAME in done.findings[0].message
    assert not any("no line info" in note for note in done.notes)


def test_a_hang_in_stock_code_is_decoded_with_lines(bench: PackedBench) -> None:
    core = bench.put("a.nvcudmp", hang_core(lines=False))
    done = promised("decode-gpu-core", bench.use("decode-gpu-core", cores=[core]))
    assert done.results["has_lines"] is True
    assert SAME in done.findings[0].message


def test_locate_asks_the_packs_before_it_searches_binaries(bench: PackedBench) -> None:
    core = bench.put("a.nvcudmp", illegal_address_core(lines=False))
    done = promised("locate", bench.use("locate", cores=[core], binaries=["/nowhere"]))
    assert lines(done.results["chain"]) == ["3", "13", "8", "19"]
    assert done.results["file"] == str(bench.directory / "sample.lines")
    assert SAME in done.findings[0].message
    other = promised("locate", bench.use("locate", cores=[core], kernel="another", binaries=[]))
    assert other.findings == ()


def test_core_lines_has_them(bench: PackedBench) -> None:
    core = str(bench.directory / bench.put("a.nvcudmp", illegal_address_core(lines=False)))
    done = promised("core-lines", bench.use("core-lines", core=core))
    assert done.results["has_lines"] is True
