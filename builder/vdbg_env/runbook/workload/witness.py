"""What each worker of vLLM reports about itself: which variables reached it, and what became of the engine arguments.

The plug-in of `lib/vllm-overlay` writes one line in each worker (vLLM's entry point group `vllm.general_plugins`) and
does nothing else, so every step over vLLM has it. Where no line appears (VLLM_PLUGINS keeps the plug-in out, another
layout of vLLM), /proc and vLLM's log are what is known.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vdbg_env.evidence.observation import Observation
from vdbg_env.runbook.model import Data, Matcher
from vdbg_env.runbook.workload.engine_args import HOOK_FOLDER, leaves

VARIABLE = "VDBG_WITNESS"
MATCHER = Matcher(name="worker_witness", pattern=r"vdbg-env: worker (?P<seen>\{.{1,1000}.{0,800}\})$", take="all")
_OF_A_RANK = "${{ rank."


@dataclass(frozen=True, kw_only=True)
class Witness:
    """One worker: the hash of each variable (None: unset), and engine arguments by their dotted names."""

    pid: int
    rank: int | None
    environment: Mapping[str, str | None]
    engine: Mapping[str, str]


def hook(
    env: Mapping[str, str | None], arguments: Mapping[str, Data], *, data_dir: str, python_path: str
) -> dict[str, str]:
    """Return the variables that have vLLM load the plug-in, and tell it what to report."""
    folder = f"{data_dir}/{HOOK_FOLDER}"
    engine = sorted(".".join(path) for path, value in leaves(arguments) if value is not None)
    asked = {"environment": sorted(env), "engine": engine}
    path = f"{folder}:{python_path}" if python_path else folder
    return {VARIABLE: json.dumps(asked, separators=(",", ":")), "PYTHONPATH": path}


def witnesses(seen: Observation) -> tuple[Witness, ...]:
    """Return what the workers of an attempt reported; a line that is cut short is none."""
    return tuple(_witnesses(seen))


def lost(env: Mapping[str, str | None], seen: Observation) -> Iterator[str]:
    """Yield one sentence for each variable that a worker did not have as the step set it."""
    for worker in witnesses(seen):
        name = "the worker" if worker.rank is None else f"the worker of rank {worker.rank}"
        for variable, wanted in env.items():
            if variable not in worker.environment:
                continue
            had = worker.environment[variable]
            if wanted is None and had is not None:
                yield f"{name} had {variable} set, the step unsets it"
            elif wanted is not None and had is None:
                yield f"{name} had no {variable}, the step asked for {wanted}"
            elif wanted is not None and _OF_A_RANK not in wanted and had != hashed(wanted):
                yield f"{name} had another {variable} than {wanted}, which the step asked for"


def engine_values(observations: Sequence[Observation], path: Sequence[str]) -> list[str]:
    """Return the value of an engine argument in each worker that reported it, as Python writes it."""
    name = ".".join(path)
    return [w.engine[name] for seen in observations for w in witnesses(seen) if name in w.engine]


def hashed(value: str) -> str:
    """Return a variable's value as the plug-in reports it."""
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _witnesses(seen: Observation) -> Iterator[Witness]:
    for match in seen.matched.get(MATCHER.name, ()):
        try:
            found = json.loads(match.groups["seen"])
            yield Witness(
                pid=int(found["pid"]), rank=found["rank"], environment=found["environment"], engine=found["engine"]
            )
        except (ValueError, KeyError, TypeError):
            continue
