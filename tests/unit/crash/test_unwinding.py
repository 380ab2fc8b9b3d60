"""Where a thread was in the driver's own code, `core` and the finding name the call that led there."""

import json
from pathlib import Path

import pytest

from gpucore.core import decode_core
from tests.gpucore.gpu_core.test_unwinding import ELSEWHERE, core_of
from tests.support.command_line import vdbg_env
from vdbg_env.evidence.gpu_findings import gpu_core_findings


def test_the_finding_names_the_caller() -> None:
    read = decode_core(core_of(0x150))
    (finding,) = gpu_core_findings(read.faults, read.warp_groups, "core")
    assert finding.message.startswith("Warp Assert in code called from inline_chain.cu:3")


def test_people_and_programs_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.nvcudmp").write_bytes(core_of(0x150))
    told = vdbg_env("core", "a.nvcudmp").stdout
    assert f"PC {ELSEWHERE:#x}, in code that the dump does not hold; called from " in told
    (fault,) = json.loads(vdbg_env("core", "--json", "a.nvcudmp").stdout)["faults"]
    assert (fault["calls_out"], fault["offset"], fault["chain"][0]["line"]) == (1, "0x140", 3)
