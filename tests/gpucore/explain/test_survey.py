"""How much of stock kernels is explained is counted of cubins of every size, by the decoder alone."""

import zipfile
from pathlib import Path

import pytest

from tests.builders.fatbin import EntrySpec, container, host_library
from tests.support.sass import stock

CUBIN = (Path(__file__).parents[2] / "data" / "explain" / "why_sm90.cubin").read_bytes()


def test_accesses_of_a_large_cubin_are_counted_and_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, missing = tmp_path / "stock.whl", str(tmp_path / "nvdisasm")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("kernels.so", host_library(container(EntrySpec(payload=CUBIN, arch=90))))
    with pytest.raises(FileNotFoundError):
        stock.survey(missing, wheel, 90, 9, seed=1)  # it is small, and would be compared
    monkeypatch.setattr(stock, "_LARGEST", len(CUBIN) - 1)
    for program in (missing, None):
        coverage, outcome = stock.survey(program, wheel, 90, 9, seed=1)
        assert (coverage.kernels, outcome.executed, coverage.not_read) == (3, 0, 0)
        assert coverage.accesses == coverage.base_argument > 3
        assert coverage.alone_whole + coverage.alone_with_known_loops == coverage.accesses
