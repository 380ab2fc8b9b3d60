"""Workloads that know their rank, and what is waited for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.k8s.cluster import until
from tests.support.steps import python
from vdbg_env.adapters.placement.followed import FollowedAttempt
from vdbg_env.adapters.placement.k8s.attempt import JobPods
from vdbg_env.adapters.placement.k8s.ranks import PodRanks
from vdbg_env.adapters.placement.k8s.watch import PodWatch
from vdbg_env.evidence.observation import Observation
from vdbg_env.runbook.model import OnFirstFailure, Placement

Pods = Callable[..., PodRanks]
QUICKLY = Placement(on_first_failure=OnFirstFailure(wait_s=0.5))
RANK = "import os,sys,time,signal\nrank=int(os.environ['JOB_COMPLETION_INDEX'])\nos.chdir('${{ rank.dir }}')\n"
WAITS = "open('runs', 'w').close()\nwhile not os.path.exists('{go}'): time.sleep(0.05)\n"


def ranked(code: str, **fields: Any) -> Any:
    # Its own time limit is far above what a busy machine takes to see what the test is about.
    return python(RANK + code, **{"placement": QUICKLY, "timeout_s": 600.0, **fields})


def waiting(attempt: Path, after: str = "raise SystemExit(rank)") -> str:
    return WAITS.format(go=attempt / "go") + after


def watch(started: FollowedAttempt) -> PodWatch:
    assert isinstance(started._ranks, JobPods)
    return started._ranks._watch


def running(attempt: Path, ranks: int = 2) -> None:
    until(lambda: len(list(attempt.glob("*/runs"))) == ranks)


def ends(started: Any, within_s: float = 300.0) -> list[Observation]:
    seen = started.wait(within_s)
    assert seen is not None, "the attempt did not end in time"
    assert [one.rank for one in seen] == list(range(len(seen)))
    return list(seen)
