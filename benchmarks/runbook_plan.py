"""Times reading, linting and planning a runbook of 200 steps, in one process and as the command a user types.

python -m benchmarks.runbook_plan [STEPS]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.paired import run_once
from vdbg_env.common import yaml_source
from vdbg_env.report.runbooks import as_text
from vdbg_env.run.library import RunbookLibrary, catalogue
from vdbg_env.runbook import machine
from vdbg_env.runbook.lint import load
from vdbg_env.runbook.machine import final_inputs
from vdbg_env.runbook.parse import Library
from vdbg_env.runbook.state import Facts, Finish, RunStep, StepResult

LIMIT_S = 0.3  # what a person at a terminal does not notice as waiting


def text_of(steps: int) -> str:
    """Return a runbook of that many run steps, each with conditions, templates, matchers and four outcomes."""
    head = """apiVersion: vdbg-env/v1
kind: Runbook
metadata: {name: long, title: A long runbook}
spec:
  inputs:
    argv: {type: array, required: true}
    deep: {type: bool, default: true}
  matchers:
    failure: {regex: 'illegal memory access|CUDA_ERROR_ILLEGAL_ADDRESS'}
    frame: {regex: 'File "(?P<file>[^"]+)", line (?P<line>[0-9]+)'}
  commands:
    workload: {argv: "${{ inputs.argv }}", timeout: 30m}
  steps:
"""
    return head + "".join(
        f"""    - id: step_{i}
      name: Step {i}
      if: "inputs.deep && (steps.step_{max(0, i - 1)}.outcome != 'pass' || workload.ranks > {i})"
      run: workload
      env: {{STEP: "{i}", FOLDER: "${{{{ rank.dir }}}}/{i}"}}
      engine_args: {{compilation_config: {{cudagraph_mode: NONE}}}}
      matchers:
        own_{i}: {{regex: 'step {i}: (?P<what>[a-z]+)'}}
      outcomes:
        - reproduced:
            when: "has(matched.failure) && matched.failure.count > {i}"
            message: "saw ${{{{ matched.failure.text }}}}"
        - hang: {{when: "ended.by == 'watch'"}}
        - not_reproduced: {{when: "ended.clean && !has(matched.own_{i})"}}
        - unresolved: {{}}
      next: {f"step_{i + 1}" if i + 1 < steps else "end"}
"""
        for i in range(steps)
    )


def seconds(work: Callable[[], object], runs: int = 9) -> tuple[float, float, float]:
    """Return the least, median and most seconds of several runs after one that warms up."""
    work()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times), statistics.median(times), max(times)


def main(arguments: Sequence[str]) -> int:
    """Print the figures; return 1 when lint and plan together pass the limit."""
    steps = int(arguments[0]) if arguments else 200
    text = text_of(steps)
    source = yaml_source.read(text, "long.yaml")
    runbook = load(source, Library({}), catalogue())
    inputs = final_inputs(runbook, {}, ["vllm", "serve", "M"], {})
    rows = {
        "read the YAML": seconds(lambda: yaml_source.read(text, "long.yaml")),
        "parse and lint": seconds(lambda: load(source, Library({}), catalogue())),
        "plan": seconds(lambda: as_text(machine.plan(runbook, inputs, Facts()))),
        "walk it with the engine": seconds(lambda: _walk(steps, text), runs=3),
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "long.yaml"
        file.write_text(text)
        command = [sys.executable, "-m", "vdbg_env", "runbook", str(file), "--plan", "--", "vllm", "serve", "M"]
        times = sorted(run_once(command)[0] for _ in range(5))
        rows["the whole command, --plan"] = (times[0], times[2], times[-1])
    print(f"{steps} steps{'':20} {'least':>9} {'median':>9} {'most':>9}  ms")
    for name, figures in rows.items():
        print(f"{name:30} " + " ".join(f"{1000 * x:9.1f}" for x in figures))
    shipped = RunbookLibrary((), catalogue).load("illegal-memory-access")
    print(f"(the shipped illegal-memory-access has {len(shipped.steps)} steps)")
    total = sum(rows[name][1] for name in ("read the YAML", "parse and lint", "plan"))
    print(f"read, lint and plan: {1000 * total:.1f} ms, limit {1000 * LIMIT_S:.0f} ms")
    return 0 if total <= LIMIT_S else 1


def _walk(steps: int, text: str) -> None:
    runbook = load(yaml_source.read(text, "long.yaml"), Library({}), catalogue())
    inputs = final_inputs(runbook, {}, ["vllm", "serve", "M"], {})
    state, decision = machine.start(runbook, inputs, Facts())
    done = 0
    while not isinstance(decision, Finish):
        assert isinstance(decision, RunStep)
        state, decision = machine.advance(state, StepResult(step=decision.invocation.step, error="not run"))
        done += 1
    assert done == steps


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
