"""The proof of addresses goes on where it was stopped, with the same code alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import accept_why
from scripts.accept_why import Unit, prove, table


def test_a_unit_is_proven_once_for_each_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proven = []

    def find(arch: int, kernels: int) -> dict[str, int]:
        proven.append(arch)
        return {"kernels": kernels}

    unit = Unit("random", "0", 90, find, (50,))
    for code in ("one", "one", "another"):
        monkeypatch.setattr(accept_why, "FOUND", tmp_path / code)
        assert prove(unit)["kernels"] == 50
    assert proven == [90, 90]


def test_the_table_ends_with_the_sums_of_all_architectures() -> None:
    found = {"sm_80": {"faults": 20, "mutations": 1400}, "sm_90": {"faults": 20, "wrong_count": 1}}
    last = table("planted", found).splitlines()[-1].split(" | ")
    assert (last[0], last[1], last[9], last[-1]) == ("| all", "40", "1,400", "1 |")
