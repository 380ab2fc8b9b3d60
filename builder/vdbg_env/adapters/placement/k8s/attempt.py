"""The ranks of one attempt as the pods of a Job, known by the files that they write and the status of their pods."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from vdbg_env.adapters.placement.followed import AGAIN_S, RemoteRanks
from vdbg_env.adapters.placement.k8s.api import Away, KubeApi, Refused
from vdbg_env.adapters.placement.k8s.evidence import PodEvidence
from vdbg_env.adapters.placement.k8s.pods import Pod
from vdbg_env.adapters.placement.k8s.watch import PodWatch
from vdbg_env.adapters.placement.rank.rank import UNSEEN
from vdbg_env.adapters.placement.records import SILENT_S, RankRecords
from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.stop import waiting
from vdbg_env.evidence.observation import Ended, EndedBy, Observation

AFTER_POD_S = 5.0  # for a file system to show what a rank wrote last
STATUS_S = 20.0  # for a pod's status to say why its rank was asked to end
IMAGE_S = 45.0  # a kubelet tries to pull an image again and again; after so long it is reported
# A rank that did not touch its file for so long is lost with its node; caches of NFS keep times for 60 s.
NODE_S = 120.0
TIDY_S = 30.0  # for the deletion of a Job at a server that does not answer
_SAID_LINES = 5


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long is waited for what may still change, in seconds."""

    start_s: float
    image_s: float = IMAGE_S
    after_pod_s: float = AFTER_POD_S
    status_s: float = STATUS_S
    node_s: float = NODE_S
    silent_s: float = SILENT_S
    tidy_s: float = TIDY_S


class JobPods(RemoteRanks):
    """RunningRanks; the Job is deleted when they have ended, with all that belongs to it."""

    def __init__(
        self,
        *,
        directory: Path,
        records: RankRecords,
        ranks: int,
        api: KubeApi,
        name: str,
        uid: str,
        watch: PodWatch,
        evidence: PodEvidence,
        patience: Patience,
    ) -> None:
        super().__init__(directory, records, ranks)
        self._api = api
        self._name = name
        self._uid = uid
        self._watch = watch
        self._evidence = evidence
        self._patience = patience
        self._began = time.monotonic()
        self._since: dict[tuple[int, str], float] = {}
        self._deleting = threading.Lock()
        watch.start()

    def closed(self, seen: list[Observation]) -> list[Observation]:
        """Keep what the cluster reports of ranks that did not end well, and delete the Job."""
        notes = self._tidied({one.rank for one in seen if not one.went_well})
        return [replace(seen[0], notes=(*seen[0].notes, *notes)), *seen[1:]]

    # -- the Job ------------------------------------------------------------------------------------------------------

    def _ask_to_end(self, _times: int) -> bool:
        """Delete the Job, whose pods then get a SIGTERM; returns False where the API server is away or refuses it."""
        with suppress(Away, Refused):
            if self._request.sent_at is None:
                started = self._records.any_started()  # pods that wait have no logs, and may be many
                self._delete(tuple((self._watch.ranks() or {}).values()) if started else ())
            return True
        return False

    def _delete(self, pods: tuple[Pod, ...]) -> None:
        with waiting():  # another thread may wait for the server
            self._deleting.acquire()
        try:
            self._evidence.collect(self._api, pods)
            self._api.delete_job(self._name, self._uid)
        finally:
            self._deleting.release()

    def _tidied(self, troubled: Collection[int]) -> tuple[str, ...]:
        """Keep what the cluster reports of some ranks, then delete the Job; returns notes."""
        self._watch.stop()
        pods = tuple(pod for rank, pod in (self._watch.ranks() or {}).items() if rank in troubled)
        until = time.monotonic() + self._patience.tidy_s
        problem = ""
        while True:
            try:
                self._delete(pods)
                break
            except Away as away:
                problem = str(away)
            except Refused as refused:
                problem = refused.message
                break
            if time.monotonic() >= until:
                break
            with waiting():
                time.sleep(AGAIN_S)
        where = f"--namespace {self._api.namespace}"
        left = f"its Job could not be deleted ({problem}): kubectl {where} delete job {self._name}"
        return (*self._evidence.notes, *([left] if problem and not self._is_gone() else []))

    def _is_gone(self) -> bool:
        with suppress(Away, Refused):
            return self._api.job(self._name) is None
        return False

    # -- what is known of each rank -----------------------------------------------------------------------------------

    def _explained(self, seen: Observation) -> Observation | None:
        """Return an end with its reason: a rank that was asked to end, and not by us, waits for what its pod says."""
        if self._request.times or seen.ended.by is not EndedBy.CANCEL:
            return seen
        pod = (self._watch.ranks() or {}).get(seen.rank)
        why = pod.failed if pod else ""
        if not (why.startswith("its pod was evicted") or (pod and pod.over)) and not self._late(
            seen.rank, "why", self._patience.status_s
        ):
            return None
        message = why or "its pod was asked to end from outside: kubectl delete, or a drained node"
        return replace(seen, ended=replace(seen.ended, by=EndedBy.NODE_LOST, message=message))

    def _without_end(self, rank: int) -> Observation | None:
        """Return what a rank's pod says of it; raises HostNotAble, with the cluster's words, where none was started."""
        pods = self._watch.ranks()
        if self._watch.refused and not self._records.any_started() and not self._request.times:
            raise self._not_started("the API server does not report its pods", (self._watch.refused.message,))
        if pods is None or self._watch.away:
            return None  # what its pod does is not known, and a record may still be written
        pod, folder = pods.get(rank), self._records.folder(rank)
        if pod is None:
            if self._request.sent_at is not None:
                return self._never(rank, "", "it was never started")
            why = "the Job has no pod for it"
            return self._not_startable(rank, why) if self._late(rank, "start", self._patience.start_s) else None
        if pod.over:
            return (
                self._of_ended_pod(rank, pod, folder) if self._late(rank, "over", self._patience.after_pod_s) else None
            )
        if folder is not None:
            silent = self._records.silent_for(folder)
            return self._records.lost(rank, _silent(pod, silent)) if silent > self._patience.node_s else None
        if pod.waits and not self._request.times:
            limit = self._patience.image_s if pod.waits.startswith("its image") else self._patience.start_s
            if pod.hopeless or self._late(rank, pod.waits[:14], limit):
                return self._not_startable(rank, pod.waits)
        return None

    def _of_ended_pod(self, rank: int, pod: Pod, folder: Path | None) -> Observation | None:
        """Return what is known of a rank whose pod is over, and which wrote no end."""
        if folder is not None:
            if found := self._records.half_written(folder):
                return self._explained(found)
            if self._records.silent_for(folder) < self._patience.silent_s and not pod.code and not self._given_up():
                return None  # the pod was taken off the list by force, and its node still runs it
            why = pod.failed or "its pod ended"
            status = "" if pod.code is None else f" (status {pod.code})"
            return self._records.lost(rank, f"{why}{status}, and it left no record of its end")
        if pod.said:
            return self._records.without_end(rank, _ended(pod.said), host=pod.node, notes=(_ELSEWHERE,))
        if self._request.times:
            return self._never(rank, pod.node, pod.failed or "it was never started")
        if pod.failed:
            return self._records.lost(rank, pod.failed)
        return self._not_startable(rank, f"its pod ended with status {pod.code} before it began: {pod.message}")

    def _not_startable(self, rank: int, why: str) -> Observation:
        """Return that a rank could not be started; raises HostNotAble where none was, as that is not their failure."""
        pods = self._watch.ranks() or {}
        begun = self._seen or self._records.any_started() or any(not (pod.waits or pod.over) for pod in pods.values())
        if not begun:
            raise self._not_started(why, ())
        pod = pods.get(rank)
        return self._never(rank, pod.node if pod else "", why)

    def _not_started(self, why: str, details: tuple[str, ...]) -> HostNotAble:
        pods = tuple((self._watch.ranks() or {}).values())
        with suppress(Away, Refused):
            self._evidence.collect(self._api, pods)
        said = (*details, *self._evidence.said(pods, self._name)[-_SAID_LINES:])
        left = self._tidied(())
        if any(pod.code == UNSEEN for pod in pods):
            return HostNotAble(
                f"no rank was started: {why}",
                cause=f"the volume that pods mount does not have the run's folder {self._evidence.folder.parents[3]}",
                details=(*said, *left),
                next_step="type the command where the volume is mounted under the same path: on a login node, or in a "
                "pod with its claim (vdbg-env render --format k8s); records cannot be collected through the API server",
            )
        return HostNotAble(
            f"no rank was started: {why}",
            cause="the image, the resources that are asked for, or the rights of the pods",
            details=(*said, *left),
            next_step=f"read {self._evidence.folder}; --k8s-pod FILE changes the pods, --k8s-wait how long they wait",
        )

    def _never(self, rank: int, host: str, why: str) -> Observation:
        by = EndedBy.CANCEL if self._request.times else EndedBy.NOT_STARTED
        return self._records.without_end(rank, Ended(by=by, message=why), host=host)

    def _late(self, rank: int, what: str, limit_s: float) -> bool:
        """Return whether something has been true of a rank for so long; the first question is when it began."""
        now = time.monotonic()
        since = self._began if what == "start" else self._since.setdefault((rank, what), now)
        return now >= since + limit_s

    def _given_up(self) -> bool:
        return self._request.asked_at is not None and time.monotonic() > self._request.asked_at + self._patience.node_s


_ELSEWHERE = "its pod reported this end, but its record is not here: do the pods see the same folder as this program?"


def _ended(said: Mapping[str, object]) -> Ended:
    """Return the end that a rank wrote as its pod's termination message."""
    code, signal, message = said.get("code"), said.get("signal"), said.get("message")
    try:
        by = EndedBy(str(said["by"]))
    except ValueError:
        by = EndedBy.ENGINE_LOST
    return Ended(
        by=by,
        code=code if isinstance(code, int) else None,
        signal=signal if isinstance(signal, int) else None,
        message=message if isinstance(message, str) else None,
    )


def _silent(pod: Pod, silent_s: float) -> str:
    return f"its node {pod.node} does not respond: the rank's file was not touched for {silent_s:.0f} s"
