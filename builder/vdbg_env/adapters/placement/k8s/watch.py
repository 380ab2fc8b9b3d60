"""Follow the pods of a Job in the background, whatever becomes of the connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace

from vdbg_env.adapters.placement.k8s.api import Away, Document, KubeApi, Refused
from vdbg_env.adapters.placement.k8s.pods import Pod, read_pod

_WATCH_S = 60
_AGAIN_S = 1.0  # between two tries; a server that was restarted is not asked by all engines at once


class PodWatch:
    """The pods with a label, as the API server last reported them, once it is started.

    `away` says why the server does not answer, `refused` is the error by which it refuses to report pods at all.
    """

    def __init__(self, api: KubeApi, selector: str, *, limit_s: int = _WATCH_S) -> None:
        self._api = api
        self._selector = selector
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._pods: dict[str, Pod] = {}
        self._listed_at: float | None = None
        self.away = ""
        self.refused: Refused | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pods", daemon=True)
        self.lists = 0

    def start(self) -> None:
        """Begin to follow the pods."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread at its next event; it is not waited for, as it may wait for the server."""
        self._ended.set()

    def ranks(self) -> Mapping[int, Pod] | None:
        """Return each rank's last pod; None before the first answer."""
        with self._lock:
            if self._listed_at is None:
                return None
            newest: dict[int, Pod] = {}
            for pod in self._pods.values():  # in the order in which they were seen
                newest[pod.rank] = pod
            return newest

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                version = self._list()
                while not self._ended.is_set():
                    began = time.monotonic()
                    version = self._follow(version)
                    # A proxy may end each watch at once: it is not asked again without a pause.
                    self._ended.wait(max(0.0, began + _AGAIN_S - time.monotonic()))
            except Refused as refused:
                if refused.status == 403:
                    self.refused = refused
                    return
                # 410: the version is too old, or the server was restored: all pods are listed again.
                self.away = "" if refused.status == 410 else refused.message
            except Away as away:
                self.away = str(away)
            self._ended.wait(_AGAIN_S)

    def _list(self) -> str:
        documents, version = self._api.pods(self._selector)
        found = [pod for document in documents if (pod := read_pod(document))]
        with self._lock:
            here = {pod.uid for pod in found}
            for uid, pod in self._pods.items():
                if uid not in here:
                    self._pods[uid] = replace(pod, over=True, gone=True)
            self._pods.update({pod.uid: pod for pod in found})
            self._listed_at = time.monotonic()
            self.lists += 1
        self.away = ""
        return version

    def _follow(self, version: str) -> str:
        for event in self._api.watch_pods(self._selector, version, self._limit_s):
            version = event["object"]["metadata"]["resourceVersion"]
            if event["type"] != "BOOKMARK":
                self._note(event)
            if self._ended.is_set():
                break
        return version

    def _note(self, event: Document) -> None:
        pod = read_pod(event["object"], gone=event["type"] == "DELETED")
        if pod:
            with self._lock:
                self._pods[pod.uid] = pod
