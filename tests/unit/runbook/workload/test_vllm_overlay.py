"""The plug-in changes the engine arguments of a script it does not touch; a stand-in of vLLM's loader loads it here.

`tests/oracle/test_vllm_engine_args.py` asks the same of a real vLLM.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.shipped import RUNBOOKS
from vdbg_env.evidence.finding import Ended, EndedBy, Match, Observation
from vdbg_env.runbook import workload
from vdbg_env.runbook.model import Data

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
        environment[workload.VARIABLE] = json.dumps(changes)
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


WORKER = """
import enum, faulthandler, os
from types import SimpleNamespace as Part
from vllm.v1.worker.worker_base import WorkerWrapperBase
import vdbg_vllm_overlay
class Mode(enum.Enum):
    NONE = 0
vdbg_vllm_overlay.apply(), vdbg_vllm_overlay.apply()
worker = WorkerWrapperBase()
worker.vllm_config = Part(
    model_config=Part(enforce_eager=True), compilation_config=Part(mode=Mode.NONE, backend="inductor"),
    one=Part(twice=1), other=Part(twice=2),
)
os.environ["DROPPED"] = ""
del os.environ["DROPPED"]
print(worker.init_device(), faulthandler.is_enabled())
"""
WORKER_BASE = "class WorkerWrapperBase:\n    global_rank = 3\n    def init_device(self):\n        return 'made'\n"


def witnessed(folder: Path, env: dict[str, str | None], arguments: dict[str, Data], **given: str) -> Observation:
    """Run a worker with the plug-in, and return what the engine sees of its error stream."""
    package = folder / "vllm" / "v1" / "worker"
    package.mkdir(parents=True)
    for name in ("__init__.py", "v1/__init__.py", "v1/worker/__init__.py"):
        (folder / "vllm" / name).touch()
    (package / "worker_base.py").write_text(WORKER_BASE)
    hook = workload.hook(env, arguments, data_dir=str(RUNBOOKS), python_path=str(folder))
    environment = {**hook, **given, "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run([sys.executable, "-c", WORKER], env=environment, capture_output=True, text=True, timeout=60)
    assert ran.stdout.split() == ["made", str("PYTHONFAULTHANDLER" in given)], ran.stderr
    (line,) = ran.stderr.splitlines()  # once, however often the plug-in is loaded
    found = re.search(workload.MATCHER.pattern, "(Worker_TP3 pid=7) " + line)
    assert found
    match = Match(matcher=workload.MATCHER.name, stream="stderr", line=1, offset=0, text=line, groups=found.groupdict())
    return Observation(
        step="s", attempt=1, ended=Ended(by=EndedBy.EXIT), duration_s=1.0, matched={workload.MATCHER.name: (match,)}
    )


def test_a_worker_reports_what_reached_it(tmp_path: Path) -> None:
    env = {"GOOD": "1", "CHANGED": "secret-a", "DROPPED": "x", "STAYS": None, "RANKED": "${{ rank.number }}"}
    given = {"GOOD": "1", "CHANGED": "secret-b", "STAYS": "", "RANKED": "3", "PYTHONFAULTHANDLER": "1"}
    seen = witnessed(tmp_path, env, {}, **given)
    (worker,) = workload.witnesses(seen)
    assert worker.rank == 3
    assert "secret" not in seen.matched[workload.MATCHER.name][0].text
    assert sorted(workload.lost(env, seen)) == [
        "the worker of rank 3 had STAYS set, the step unsets it",
        "the worker of rank 3 had another CHANGED than secret-a, which the step asked for",
        "the worker of rank 3 had no DROPPED, the step asked for x",
    ]


def test_a_worker_reports_what_became_of_the_engine_arguments(tmp_path: Path) -> None:
    asked: dict[str, Data] = {
        "enforce_eager": True, "compilation_config": {"mode": 0, "backend": "eager"}, "twice": 1, "absent": 2,
    }  # fmt: skip
    seen = witnessed(tmp_path, {}, asked)
    assert workload.engine_values([seen], ["compilation_config", "mode"]) == ["<Mode.NONE: 0>"]
    assert workload.engine_values([seen], ["twice"]) == [], "two parts have a field of this name: which is meant?"
    assert list(workload.undone(asked, [seen])) == [
        "a worker runs with compilation_config.backend=inductor, the step asked for eager"
    ]


def test_a_line_that_is_cut_short_is_no_witness() -> None:
    match = Match(
        matcher=workload.MATCHER.name, stream="stderr", line=1, offset=0, text="", groups={"seen": '{"pid": 1}'}
    )
    seen = Observation(
        step="s", attempt=1, ended=Ended(by=EndedBy.EXIT), duration_s=1.0, matched={workload.MATCHER.name: (match,)}
    )
    assert workload.witnesses(seen) == ()
