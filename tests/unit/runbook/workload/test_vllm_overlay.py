"""The plug-in changes the engine arguments of a script it does not touch; a stand-in of vLLM's loader loads it here.

`tests/oracle/test_vllm_engine_args.py` asks the same of a real vLLM.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.shipped import RUNBOOKS
from vdbg_env.runbook.workload import engine_args

PLUGIN = RUNBOOKS / "lib" / "vllm-overlay"

STAND_IN = """
import enum
from dataclasses import dataclass, field
from importlib.metadata import entry_points

class Mode(enum.Enum):
    NONE = 0
    FULL = 2

@dataclass
class CompilationConfig:
    mode: int = 3
    cudagraph_mode: Mode = Mode.FULL
    def __post_init__(self):
        if isinstance(self.cudagraph_mode, str):
            self.cudagraph_mode = Mode[self.cudagraph_mode]

@dataclass
class AttentionConfig:
    backend: str | None = None

@dataclass
class EngineArgs:
    enforce_eager: bool = False
    attention_backend: str | None = None
    compilation_config: CompilationConfig = field(default_factory=CompilationConfig)
    attention_config: AttentionConfig = field(default_factory=AttentionConfig)
    def __post_init__(self):
        for point in entry_points(group="vllm.general_plugins"):
            point.load()()
    def create_engine_config(self):
        return self
"""

ASK = """
from vllm.engine.arg_utils import EngineArgs
EngineArgs()  # a second engine in the same process must not be changed twice
got = EngineArgs(attention_backend="FLASHINFER").create_engine_config()
c = got.compilation_config
print(got.enforce_eager, c.mode, c.cudagraph_mode.name, got.attention_config.backend, got.attention_backend)
"""


def ask(folder: Path, changes: object) -> subprocess.CompletedProcess[str]:
    package = folder / "vllm" / "engine"
    package.mkdir(parents=True)
    (folder / "vllm" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "arg_utils.py").write_text(STAND_IN)
    environment = {"PYTHONPATH": f"{PLUGIN}:{folder}", "PYTHONDONTWRITEBYTECODE": "1"}
    if changes is not None:
        environment[engine_args.VARIABLE] = json.dumps(changes)
    return subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (None, "False 3 FULL None FLASHINFER"),
        ({"enforce_eager": True}, "True 3 FULL None FLASHINFER"),
        ({"compilation_config": {"cudagraph_mode": "NONE"}}, "False 3 NONE None FLASHINFER"),
        ({"compilation_config": {"mode": 0}}, "False 0 FULL None FLASHINFER"),
        ({"attention_config": {"backend": "TRITON_ATTN"}}, "False 3 FULL TRITON_ATTN None"),
    ],
)
def test_the_plug_in_changes_what_it_is_told_and_nothing_else(tmp_path: Path, changes: object, expected: str) -> None:
    told = ask(tmp_path, changes)
    assert told.stdout.split() == expected.split()
    said = [line for line in told.stderr.splitlines() if line.startswith("vdbg-env: engine arguments applied: ")]
    assert len(said) == (0 if changes is None else 1)


def test_an_argument_that_this_vllm_lacks_ends_the_workload_with_a_word(tmp_path: Path) -> None:
    told = ask(tmp_path, {"nope": 1})
    assert told.returncode == 1
    assert told.stderr == "vdbg-env: this vLLM has no engine argument nope\n"
