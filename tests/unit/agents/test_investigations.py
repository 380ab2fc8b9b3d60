"""Thirty investigations by a fixed policy: the planted fact is found in at most 6 calls and 20 kB of answers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.builders.core_builder import (
    CUBINS,
    exited_warps_core,
    hang_core,
    idle_core,
    illegal_address_core,
)
from tests.support.agent import agent
from tests.support.command_line import vdbg_env
from tests.support.investigation import busy_core, investigate

LOGS = Path(__file__).parents[2] / "data" / "logs"
MOST_CALLS, MOST_BYTES = 6, 20_000


@dataclass(frozen=True)
class Case:
    """What to look into, and the words that the planted fact must be told in."""

    name: str
    core: Callable[[], bytes] | None = None
    log: str | None = None
    crash: str | None = None
    facts: tuple[str, ...] = ()


def fault(**more: Any) -> Callable[[], bytes]:
    return partial(illegal_address_core, **more)


LEAF = ("inline_chain.cu", '"line":3', "p[i] = v", "kern<float>")
CASES = [
    Case("illegal address", core=illegal_address_core, facts=(*LEAF, "Warp Illegal Address", "argument 1, float*")),
    Case("misaligned", core=fault(exception=6), facts=(*LEAF, "Warp Misaligned Address")),
    Case("stack overflow", core=fault(exception=2), facts=("Lane User Stack Overflow", '"line":3')),
    Case("assert", core=fault(exception=12), facts=("Warp Assert", '"line":3')),
    Case("hardware stack", core=fault(exception=3), facts=("Device Hardware Stack Overflow",)),
    Case("illegal instruction", core=fault(exception=4), facts=("Warp Illegal Instruction",)),
    Case("no lines", core=fault(lines=False), facts=("kern<float>", "vdbg-env locate _Z4kernIfEvPT_iS0_")),
    Case("old driver", core=fault(branch="r525"), facts=(*LEAF, "(32,0,0)")),
    Case("warps are gone", core=partial(exited_warps_core, words="the driver's own"), facts=('"line":3', "ver's own")),
    Case("hang", core=hang_core, facts=("waiting at a block barrier", '"state":"running"', '"line":19')),
    Case("idle", core=idle_core, facts=('"faults":[]', '"warps":[]')),
    Case("busy device", core=busy_core, facts=("Warp Misaligned Address", '"line":3', '"sm":77')),
    *(Case(f"log {name}", log=f"dev/{name}.log") for name in (
        "ima-v1-enginecore", "misaligned-flashinfer", "assert-idx-dim", "hang-shm-old-text", "nccl-init-ib",
        "oom-torch-new", "graph-capture-plain", "no-image-plain", "triton-ptxas-b200", "launch-oor",
        "cublas-execution-failed", "host-segv-worker",
    )),
    *(Case(f"run {failure}", crash=line, facts=(f"vdbg-env runbook {failure}", line)) for failure, line in (
        ("illegal-memory-access", "RuntimeError: CUDA error: an illegal memory access was encountered"),
        ("out-of-memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
        ("device-side-assert", "RuntimeError: CUDA error: device-side assert triggered"),
        ("no-kernel-image", "RuntimeError: CUDA error: no kernel image is available for execution on the device"),
        ("cublas-or-cudnn-failure", "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `gemm`"),
        ("launch-config", "RuntimeError: CUDA error: too many resources requested for launch"),
    )),
]  # fmt: skip


def test_there_are_thirty() -> None:
    assert len(CASES) == len({case.name for case in CASES}) == 30


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_planted_fact_is_found(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts, path = case.facts, "core.nvcudmp"
    if case.core is not None:
        (tmp_path / "core.nvcudmp").write_bytes(case.core())
        (tmp_path / "inline_chain.cu").write_bytes((CUBINS / "inline_chain.cu").read_bytes())
    elif case.log is not None:
        path = str(LOGS / case.log)
        label = next(
            one for one in yaml.safe_load((LOGS / "labels.yaml").read_text())["logs"] if one["file"] == case.log
        )
        facts = (f'"class":"{label["class"]}"', f'"line":{label["root"][0]},')
    elif case.crash is not None:
        monkeypatch.setenv("VDBG_ENV_RUNS", str(tmp_path / "runs"))
        program = f"import sys; print({case.crash!r}, file=sys.stderr); sys.exit(1)"
        assert vdbg_env("guard", "--", sys.executable, "-c", program).status == 1
        path = "runs"
    with agent(tmp_path, LOGS) as ask:
        told = investigate(ask, path)
    assert [fact for fact in facts if fact not in told] == [], told
    assert ask.calls <= MOST_CALLS and ask.bytes <= MOST_BYTES, (ask.asked, ask.bytes)
