"""What a step changes of vLLM's engine arguments, a real vLLM takes: by flags and through the plug-in alike.

Needs a vLLM that can be imported, by this interpreter or by the one VDBG_TEST_VLLM_PYTHON names; no GPU.
"""

import os
import subprocess
import sys
from functools import cache

import pytest

from tests.support.shipped import RUNBOOKS, shipped
from vdbg_env.runbook import engine_args
from vdbg_env.runbook.model import Data, Run

REAL = """
import json, sys
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

def shown(self):
    c, a = self.compilation_config, self.attention_config
    print("FINAL", json.dumps([self.enforce_eager, int(c.mode), c.cudagraph_mode.name, c.backend,
          a.backend.name if a.backend else None, self.disable_custom_all_reduce, c.debug_dump_path is not None]))

EngineArgs.create_engine_config = shown
parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
arguments = parser.parse_args(sys.argv[1:])
EngineArgs.from_cli_args(arguments).create_engine_config()
"""

GIVEN = ("--model", "m", "-cc", '{"mode": 3, "cudagraph_mode": "FULL", "debug_dump_path": "/x", "backend": "inductor"}')


@cache
def real_python() -> str:
    python = os.environ.get("VDBG_TEST_VLLM_PYTHON", sys.executable)
    found = subprocess.run([python, "-c", "import vllm.engine.arg_utils"], capture_output=True, timeout=300)
    if found.returncode:
        pytest.skip("no vLLM can be imported; set VDBG_TEST_VLLM_PYTHON to an interpreter that has one")
    return python


def ladder() -> list[tuple[str, dict[str, Data]]]:
    steps = [step for step in shipped("illegal-memory-access").steps if isinstance(step, Run) and step.engine_args]
    chosen: dict[str, Data] = {"backend": "TRITON_ATTN"}
    return [
        (step.id, {"attention_config": chosen} if step.id == "attention" else dict(step.engine_args)) for step in steps
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("step", "changes"), ladder(), ids=[step for step, _ in ladder()])
def test_flags_and_plug_in_make_the_same_engine_of_a_real_vllm(step: str, changes: dict[str, Data]) -> None:
    python = real_python()

    def final(argv: tuple[str, ...], extra: dict[str, str | None]) -> str:
        environment = {**os.environ, **{k: v for k, v in extra.items() if v is not None}}
        told = subprocess.run(
            [python, "-c", REAL, *argv], env=environment, capture_output=True, text=True, timeout=300, check=True
        )
        return next(line for line in told.stdout.splitlines() if line.startswith("FINAL"))

    by_flags = final(engine_args.as_flags(GIVEN, changes), {})
    by_plug_in = final(GIVEN, engine_args.as_environment(changes, data_dir=str(RUNBOOKS), python_path=""))
    assert by_flags == by_plug_in
    assert by_flags != final(GIVEN, {})
    assert by_flags.endswith("true]"), "what the user gave beside the change was lost"
