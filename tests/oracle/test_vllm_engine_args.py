"""What a step changes of vLLM's engine arguments, a real vLLM takes: by flags and through the plug-in alike.

Needs a vLLM that can be imported, by this interpreter or by the one VDBG_TEST_VLLM_PYTHON names; no GPU.
"""

import json
import os
import subprocess
import sys
from functools import cache

import pytest

from tests.support.shipped import RUNBOOKS, shipped
from vdbg_env.runbook import workload
from vdbg_env.runbook.model import Data, Run

pytestmark = pytest.mark.slow

# Imports vLLM once and forks for each case, because importing it takes long and its plug-ins are loaded once a process.
# Without a GPU vLLM knows no device; it is told one, which none of the arguments asked about depends on.
ASK = r"""
import json, os, sys
import vllm.platforms
vllm.platforms.current_platform.device_type = vllm.platforms.current_platform.device_type or "cuda"
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

def named(value):
    return getattr(value, "name", value)

def shown(self):
    c, a = self.compilation_config, self.attention_config
    return [self.enforce_eager, None if c.mode is None else int(c.mode), named(c.cudagraph_mode),
            c.backend, named(a.backend), named(self.attention_backend),
            self.disable_custom_all_reduce, str(c.debug_dump_path)]

EngineArgs.create_engine_config = shown
parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
for number, (argv, environment) in enumerate(json.load(sys.stdin)):
    sys.stdout.flush()
    if os.fork() == 0:
        os.environ.update(environment)
        sys.path[:0] = environment.get("PYTHONPATH", "").split(":")
        final = EngineArgs.from_cli_args(parser.parse_args(argv)).create_engine_config()
        print("FINAL", json.dumps([number, final]), flush=True)
        os._exit(0)
    os.wait()
"""

GIVEN = ("--model", "m", "-cc", '{"mode": 3, "cudagraph_mode": "FULL", "debug_dump_path": "/x", "backend": "inductor"}',
         "--attention-backend", "FLASHINFER")  # fmt: skip
AS_GIVEN = [False, 3, "FULL", "inductor", None, "FLASHINFER", False, "/x"]

WANTED: dict[str, list[object]] = {
    "graphs_piecewise": [False, 3, "PIECEWISE", "inductor", None, "FLASHINFER", False, "/x"],
    "graphs_off": [False, 3, "NONE", "inductor", None, "FLASHINFER", False, "/x"],
    "inductor_off": [False, 3, "FULL", "eager", None, "FLASHINFER", False, "/x"],
    "compile_off": [False, 0, "FULL", "inductor", None, "FLASHINFER", False, "/x"],
    "eager": [True, 3, "FULL", "inductor", None, "FLASHINFER", False, "/x"],
    "all_reduce": [False, 3, "FULL", "inductor", None, "FLASHINFER", True, "/x"],
    "attention": [False, 3, "FULL", "inductor", "TRITON_ATTN", None, False, "/x"],
    "memcheck_uncached": [True, 3, "FULL", "inductor", None, "FLASHINFER", False, "/x"],
}


def changes(step_id: str) -> dict[str, Data]:
    step = shipped("illegal-memory-access").step(step_id)
    assert isinstance(step, Run)
    return {"attention_config": {"backend": "TRITON_ATTN"}} if step_id == "attention" else dict(step.engine_args)


@cache
def answers() -> dict[str, list[object]]:
    """Ask the real vLLM once for all cases: as given, naively appended, and each step by flags and by plug-in."""
    cases: dict[str, tuple[tuple[str, ...], dict[str, str | None]]] = {
        "as given": (GIVEN, {}),
        "naively appended": ((*GIVEN, "-cc.cudagraph_mode=NONE"), {}),
    }
    for step in WANTED:
        cases[f"{step} by flags"] = (workload.as_flags(GIVEN, changes(step)), {})
        delta = workload.as_environment(changes(step), data_dir=str(RUNBOOKS), python_path="")
        cases[f"{step} by plug-in"] = (GIVEN, delta)
    python = os.environ.get("VDBG_TEST_VLLM_PYTHON", sys.executable)
    told = subprocess.run(
        [python, "-c", ASK], input=json.dumps(list(cases.values())), capture_output=True, text=True, timeout=500
    )
    if "No module named 'vllm'" in told.stderr:
        pytest.skip("no vLLM can be imported; set VDBG_TEST_VLLM_PYTHON to an interpreter that has one")
    finals = [json.loads(line.removeprefix("FINAL ")) for line in told.stdout.splitlines() if line.startswith("FINAL")]
    assert len(finals) == len(cases), told.stderr[-2000:]
    return {name: final for name, (_, final) in zip(cases, finals, strict=True)}


def test_what_is_given_arrives() -> None:
    assert answers()["as given"] == AS_GIVEN


def test_appending_a_dotted_flag_would_lose_what_the_user_gave() -> None:
    assert answers()["naively appended"] != WANTED["graphs_off"]


@pytest.mark.parametrize("step", WANTED)
def test_flags_and_plug_in_make_the_same_engine(step: str) -> None:
    assert answers()[f"{step} by flags"] == WANTED[step]
    assert answers()[f"{step} by plug-in"] == WANTED[step]


def test_every_step_with_engine_arguments_is_asked_about() -> None:
    steps = shipped("illegal-memory-access").steps
    assert {step.id for step in steps if isinstance(step, Run) and step.engine_args} == set(WANTED)
