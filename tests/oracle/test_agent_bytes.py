"""An agent's investigation of a core takes a tenth of the bytes of cuda-gdb's transcript of the same core.

The commands are those of the post-mortem chapter of the cuda-gdb manual: what there is, where each warp stands, the
threads of the focus, their frames and registers, and the code around the exception.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.core_builder import CUBINS
from tests.oracle.test_cores_against_cuda_gdb import asked
from tests.support.agent import agent
from tests.support.investigation import busy_core, investigate

COMMANDS = (
    "info cuda devices", "info cuda sms", "info cuda warps", "info cuda lanes", "info cuda kernels",
    "info cuda blocks", "info cuda threads", "backtrace", "info registers", "x/24i $pc-0x80",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("exception", [6, 14, 0])
def test_an_investigation_takes_a_tenth_of_a_transcript(exception: int, tmp_path: Path) -> None:
    transcript = asked(busy_core(exception), tmp_path, *COMMANDS)
    assert "kern<float>" in transcript
    (tmp_path / "inline_chain.cu").write_bytes((CUBINS / "inline_chain.cu").read_bytes())
    with agent(tmp_path) as ask:
        told = investigate(ask, "core.nvcudmp")
    assert '"line":' in told
    print(f"exception {exception}: {ask.calls} calls, {ask.bytes:,} bytes; cuda-gdb {len(transcript.encode()):,}")
    assert ask.bytes * 10 <= len(transcript.encode()), (ask.bytes, len(transcript.encode()))
