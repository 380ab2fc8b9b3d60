"""The orders that the ranks of an attempt get, and the files by which they answer; each rank imports this first."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vdbg_env.supervisor.job import Job, from_json, to_json

_RANK = re.compile(r"\$\{\{ rank\.(dir|number|host|local) \}\}")
NODE = "node.json"  # in a rank's folder: what it found on its node
SEAL, KEY = "seal", "key"  # in that file, and in the rank's file of ENDED: who knows the key has made the seal
STOP = "stop"  # in an attempt's folder: its ranks are to end; they look now and then
ENDED = "ended"  # the folder of an attempt with one file for each rank that has ended


@dataclass(frozen=True, kw_only=True)
class Orders:
    """What every rank of an attempt gets: `first` is the job of rank 0, `others` that of each other one.

    `directory` is the attempt's folder on a file system that all nodes share. `rank_from` and `host_from` name the
    variables in which the launcher puts a rank's number and the name of its node; `step_from` its own name for the
    attempt, `local_from` the rank's number on its node. With `scratch`, a folder on each node's own disk,
    `${{ rank.dir }}` is below it, and all ranks together move at most `scratch_limit` bytes of artifacts from there.
    """

    directory: str
    step: str
    attempt: int
    first: Job
    others: Job
    rank_from: str
    host_from: str = ""
    step_from: str = ""
    local_from: str = ""
    scratch: str = ""
    scratch_limit: int = 0
    artifacts: tuple[Mapping[str, Any], ...] = field(default=())

    def to_json(self) -> bytes:
        """Return the orders as one line."""
        jobs = {"first": to_json(self.first).decode(), "others": to_json(self.others).decode()}
        return json.dumps(vars(self) | jobs).encode() + b"\n"


def read_orders(line: bytes) -> Orders | None:
    """Return the orders; None when they did not arrive whole, because the engine died while it sent them."""
    if not line.endswith(b"\n"):
        return None
    document = json.loads(line)
    first, others = (from_json(document.pop(name).encode()) for name in ("first", "others"))
    assert first and others
    return Orders(**{**document, "artifacts": tuple(document["artifacts"])}, first=first, others=others)


def sealed(key: str) -> str:
    """Return the seal of a key: a rank publishes it before its workload begins, and the key with its end."""
    return hashlib.sha256(key.encode()).hexdigest()


def job_of_rank(orders: Orders, *, rank: int, host: str, directory: str, dumps: str = "", local: str = "0") -> Job:
    """Return the job of one rank: `${{ rank.* }}` has its values, `dumps` for its folder if that is elsewhere."""
    known = {"dir": dumps or directory, "number": str(rank), "host": host, "local": local}
    job = orders.others if rank else orders.first

    def filled(text: str) -> str:
        return _RANK.sub(lambda found: known[found[1]], text)

    return job._replace(
        directory=".",
        dumps=dumps,
        stop=f"../{STOP}",
        argv=tuple(map(filled, job.argv)),
        env={name: filled(value) for name, value in job.env.items()},
        overlay={name: value and filled(value) for name, value in job.overlay.items()},
    )


def alike(orders: Orders, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that all ranks should have in common: none that a step gives each rank a value of."""
    own = {name for name, text in (*orders.first.env.items(), *orders.others.env.items()) if _RANK.search(text)}
    return {name: text for name, text in environment.items() if name not in own}
