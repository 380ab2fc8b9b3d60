"""What the cluster reports of an attempt: logs of pods, events and termination messages, kept without secrets."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from vdbg_env.adapters.placement.k8s.api import Away, Document, KubeApi, Refused
from vdbg_env.adapters.placement.k8s.pods import Pod
from vdbg_env.record.redaction.redaction import Redactor

FOLDER = "kubernetes"  # in an attempt's folder
_MOST_PODS = 32
_LOG_LIMIT = 64 << 10
_LIMIT_S = 20.0  # for what one collection asks: the Job is deleted only after it, and a dead node's log takes 30 s


class PodEvidence:
    """The folder of one attempt's evidence; a call that fails costs a file, and is noted once."""

    def __init__(self, directory: Path, job: str, redactor: Redactor, *, limit_s: float = _LIMIT_S) -> None:
        self.folder = directory / FOLDER
        self._job = job
        self._redactor = redactor
        self._limit_s = limit_s
        self._events: dict[str, str] = {}
        self._logged: set[str] = set()
        self._problems: dict[str, str] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be kept, and why."""
        return tuple(f"{what} could not be kept: {why}" for what, why in self._problems.items())

    def collect(self, api: KubeApi, pods: Sequence[Pod]) -> None:
        """Keep the Job's events, and of each pod its events, log and termination message, as far as the time goes."""
        try:
            self._collect(api, pods)
        except OSError as error:  # a full disk: the Job is to be deleted none the less
            self._problems["what the cluster reports"] = error.strerror or str(error)

    def _collect(self, api: KubeApi, pods: Sequence[Pod]) -> None:
        until = time.monotonic() + self._limit_s
        self.folder.mkdir(exist_ok=True)
        named = [(self._job, f"job {self._job}"), *((pod.name, f"rank {pod.rank}") for pod in pods[:_MOST_PODS])]
        asked = [partial(self._take_events, api, name, what) for name, what in named]
        asked += [partial(self._take_log, api, pod) for pod in pods[:_MOST_PODS]]
        for ask in asked:
            if time.monotonic() >= until:
                self._problems["events and logs of some pods"] = f"the cluster took more than {self._limit_s:g} s"
                break
            ask()
        lines = sorted(self._events.values())
        if lines:
            self._write("events.txt", "".join(f"{line}\n" for line in lines).encode())
        ends = {
            pod.name: {
                "rank": pod.rank,
                "node": pod.node,
                "code": pod.code,
                "failed": pod.failed,
                "message": pod.message,
            }
            for pod in pods
        }
        if ends:
            self._write("pods.json", json.dumps(ends, indent=1).encode() + b"\n")

    def said(self, pods: Iterable[Pod], job: str) -> tuple[str, ...]:
        """Return the last lines of what was reported, for a message."""
        lines = [self._redactor.text(line) for line in sorted(self._events.values())]
        for pod in pods:
            lines += self._redactor.text(pod.message).splitlines()
        return tuple(dict.fromkeys(line for line in lines if line.strip()))

    def _take_events(self, api: KubeApi, name: str, what: str) -> None:
        try:
            for event in api.events(name):
                self._events[str(event["metadata"].get("uid") or event["metadata"]["name"])] = _line(event, what)
        except (Away, Refused) as error:
            self._problems["events of the cluster"] = str(error)

    def _take_log(self, api: KubeApi, pod: Pod) -> None:
        if pod.uid in self._logged or pod.gone:
            return
        try:
            log = api.log(pod.name, limit=_LOG_LIMIT)
        except (Away, Refused):
            return  # a container that was not started has none
        if pod.over:
            self._logged.add(pod.uid)
        if log:
            self._write(f"rank-{pod.rank}.log", log)

    def _write(self, name: str, data: bytes) -> None:
        (self.folder / name).write_bytes(self._redactor.data(data))


def _line(event: Document, what: str) -> str:
    when = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or ""
    return f"{when} {what}: {event.get('reason', '')}: {event.get('message', '')}".strip()
