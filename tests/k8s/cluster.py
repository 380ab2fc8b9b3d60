"""Controllers and kubelet, played: pods of released Jobs run the real rank process, each with its own mounts.

What is played is what a cluster does by its documentation: one pod for each index and no second one, SIGTERM and a
grace before SIGKILL, a status that a kubelet writes, and the deletion of all that a deleted Job owned.
"""

from __future__ import annotations

import base64
import os
import secrets
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.k8s.front import Front, await_kinds, define
from tests.k8s.server import ApiServer

JOBS = "/apis/batch.test/v1/namespaces/default/jobs"
CORE = "/apis/core.test/v1/namespaces/default"
PODS = f"{CORE}/pods"
TICK_S = 0.05
_MERGE = "application/merge-patch+json"


def until(seen: Callable[[], Any], within_s: float = 300.0) -> Any:
    """Return what `seen` returns once it is true."""
    end = time.monotonic() + within_s
    while not (found := seen()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
    return found


class _Process:
    """The one process of a pod."""

    def __init__(self, pod: Mapping[str, Any], folder: Path, values: Callable[[str, str], str]) -> None:
        self.message = folder / "termination-log"
        self.log = folder / "log"
        self.killed_at: float | None = None
        container = pod["spec"]["containers"][0]
        env = {"PATH": os.environ["PATH"], "JOB_COMPLETION_INDEX": pod["metadata"]["labels"][_INDEX]}
        for one in container["env"]:
            source = one.get("valueFrom", {})
            if "fieldRef" in source:
                assert source["fieldRef"]["fieldPath"] == "spec.nodeName"
                env[one["name"]] = pod["spec"]["nodeName"]
            elif "secretKeyRef" in source:
                env[one["name"]] = values(source["secretKeyRef"]["name"], source["secretKeyRef"]["key"])
            else:
                env[one["name"]] = one["value"]
        for one in container.get("envFrom", ()):
            env["FROM_ANOTHER_SECRET"] = values(one["secretRef"]["name"], "value")
        env["VDBG_TERMINATION_LOG"] = str(self.message)
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-euc", self._mounts(pod, folder, values),
                 "pod", *container["command"]],
                env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def _mounts(self, pod: Mapping[str, Any], folder: Path, values: Callable[[str, str], str]) -> str:
        volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
        lines = ["mount -t tmpfs tmpfs /run"]
        for mount in pod["spec"]["containers"][0]["volumeMounts"]:
            volume, path = volumes[mount["name"]], mount["mountPath"]
            if "emptyDir" in volume:
                continue
            if "secret" in volume:
                source = folder / "secret"
                source.mkdir()
                for item in volume["secret"]["items"]:
                    (source / item["path"]).write_text(values(volume["secret"]["secretName"], item["key"]))
            else:
                source = Path(volume["hostPath"]["path"]) / mount.get("subPath", "")
                source.mkdir(parents=True, exist_ok=True)  # as a kubelet makes the folder of a subPath
            lines += [f"mkdir -p {shlex.quote(path)}", f"mount --bind {shlex.quote(str(source))} {shlex.quote(path)}"]
            if mount.get("readOnly"):
                lines.append(f"mount -o remount,ro,bind {shlex.quote(path)}")
        return "\n".join([*lines, 'exec "$@"'])


_INDEX = "batch.kubernetes.io/job-completion-index"


class Cluster:
    """One cluster for all tests; between tests `clean` makes it as new."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = ApiServer(folder)
        try:
            self.server.start()
            define(self.server)
        except BaseException:
            self.server.stop()
            raise
        self.front = Front(self.server, self._log)
        self.fates: dict[int, str] = {}
        self.values: dict[str, str] = {}
        self._made: set[tuple[str, int]] = set()
        self._running: dict[str, _Process] = {}
        self._names: dict[str, _Process] = {}
        self._evicted: dict[str, str] = {}
        self._ended = threading.Event()
        self.problems: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def restart(self) -> None:
        """Start the API server again, once it was killed."""
        self.server.start()
        await_kinds(self.server)

    def kubeconfig(self, folder: Path) -> Path:
        path = folder / "kubeconfig"
        path.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n"
            f'clusters: [{{name: a, cluster: {{server: "{self.front.address}"}}}}]\n'
            "users: [{name: u, user: {token: none}}]\n"
            "contexts: [{name: test, context: {cluster: a, user: u, namespace: default}}]\n"
        )
        return path

    def close(self) -> None:
        self._ended.set()
        self._thread.join(10)
        for process in self._running.values():
            process.child.kill()
            process.child.wait()
        self.front.close()
        self.server.stop()

    def objects(self) -> list[str]:
        """Return the name of all that is stored."""
        found = []
        for place in (JOBS, PODS, f"{CORE}/services", f"{CORE}/secrets"):
            found += [f"{place.rpartition('/')[2]}/{one['metadata']['name']}" for one in self._items(place)]
        return found

    def processes(self) -> list[int]:
        return [one.child.pid for one in self._running.values() if one.child.poll() is None]

    def pods(self) -> list[dict[str, Any]]:
        return self._items(PODS)

    def evict(self, rank: int, message: str) -> None:
        """End a pod as a kubelet does whose node runs out of something."""
        pod = next(one for one in self.pods() if one["metadata"]["labels"][_INDEX] == str(rank))
        self._evicted[pod["metadata"]["uid"]] = message
        self._running[pod["metadata"]["uid"]].child.send_signal(signal.SIGTERM)

    def event(self, name: str, reason: str, message: str) -> None:
        status, said = self.server.call(
            "POST", f"{CORE}/events",
            {"apiVersion": "core.test/v1", "kind": "Event", "metadata": {"name": f"{name}.{secrets.token_hex(4)}"},
             "involvedObject": {"name": name}, "reason": reason, "message": message},
        )  # fmt: skip
        assert status == 201, said

    def clean(self) -> None:
        """Forget what a test has changed, and delete what is left."""
        self.fates.clear()
        self.values.clear()
        self.front.denied.clear()
        self.front.expire_watches = 0
        self.front.invalid.clear()
        self.front.asked.clear()
        self.front.made.clear()
        for job in self._items(JOBS):
            self.server.call("DELETE", f"{JOBS}/{job['metadata']['name']}")
        until(lambda: not self.objects())

    # -- controllers --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended.wait(TICK_S):
            try:
                self._control()
            except (OSError, ValueError):
                continue  # the server is gone for a while
            except BaseException as problem:
                self.problems.append(problem)
                raise

    def _control(self) -> None:
        # Before the Jobs: one that is made in between owns objects too.
        owned = [(place, one) for place in (f"{CORE}/services", f"{CORE}/secrets") for one in self._items(place)]
        jobs = {job["metadata"]["uid"]: job for job in self._items(JOBS)}
        for uid, job in jobs.items():
            for index in range(job["spec"]["completions"]):
                if not job["spec"]["suspend"] and (uid, index) not in self._made and self.fates.get(index) != "no pod":
                    self._make(job, index)
        for pod in self.pods():
            self._keep(pod, jobs)
        for place, one in owned:
            owners = one["metadata"].get("ownerReferences", ())
            if owners and owners[0]["uid"] not in jobs:
                self.server.call("DELETE", f"{place}/{one['metadata']['name']}")

    def _make(self, job: Mapping[str, Any], index: int) -> None:
        name, template = job["metadata"]["name"], job["spec"]["template"]
        uid = job["metadata"]["uid"]
        marks = {"batch.kubernetes.io/job-name": name, _INDEX: str(index)}
        node = {} if self.fates.get(index) == "unschedulable" else {"nodeName": f"node{index}"}
        status, said = self.server.call(
            "POST", PODS,
            {
                "apiVersion": "core.test/v1", "kind": "Pod",
                "metadata": {
                    "name": f"{name}-{index}-{secrets.token_hex(3)}",
                    "labels": {**template["metadata"]["labels"], **marks},
                    "finalizers": ["test/kubelet"],
                    "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid}],
                },
                "spec": {**template["spec"], "hostname": f"{name}-{index}", **node},
            },
        )  # fmt: skip
        assert status == 201, said
        self._made.add((uid, index))

    # -- kubelets -----------------------------------------------------------------------------------------------------

    def _keep(self, pod: Mapping[str, Any], jobs: Mapping[str, Any]) -> None:
        uid, metadata = pod["metadata"]["uid"], pod["metadata"]
        process = self._running.get(uid)
        if metadata["ownerReferences"][0]["uid"] not in jobs and "deletionTimestamp" not in metadata:
            self.server.call("DELETE", f"{PODS}/{metadata['name']}")
            return
        if process is None and "status" not in pod and "deletionTimestamp" not in metadata:
            self._begin(pod)
            return
        over = process is None or process.child.poll() is not None
        if process and over and pod["status"]["phase"] == "Running":
            self._say(pod, self._end(uid, process))
        if "deletionTimestamp" not in metadata:
            return
        if over:
            self.server.call("PATCH", f"{PODS}/{metadata['name']}", {"metadata": {"finalizers": []}}, _MERGE)
        elif process and process.killed_at is None:
            process.child.send_signal(signal.SIGTERM)
            process.killed_at = time.monotonic() + pod["spec"]["terminationGracePeriodSeconds"]
        elif process and process.killed_at and time.monotonic() > process.killed_at:
            process.child.kill()

    def _begin(self, pod: Mapping[str, Any]) -> None:
        match self.fates.get(int(pod["metadata"]["labels"][_INDEX])):
            case "image":
                message = 'Back-off pulling image "no/such:image": not found'
                waiting = {"reason": "ImagePullBackOff", "message": message}
                self.event(pod["metadata"]["name"], "Failed", "Failed to pull image: not found")
                self._say(pod, {"phase": "Pending", "containerStatuses": [_state(waiting=waiting)]})
            case "unschedulable":
                said = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: 3 too small"}
                self._say(pod, {"phase": "Pending", "conditions": [{**said, "reason": "Unschedulable"}]})
            case _ if self._has_secret(pod):
                folder = self.folder / "pods" / pod["metadata"]["uid"]
                folder.mkdir(parents=True)
                process = _Process(pod, folder, self._value)
                self._running[pod["metadata"]["uid"]] = self._names[pod["metadata"]["name"]] = process
                self._say(pod, {"phase": "Running", "containerStatuses": [_state(running={})]})

    def _has_secret(self, pod: Mapping[str, Any]) -> bool:
        """Return whether a pod's Secret is there: a kubelet waits for it, and so for ever once its Job is gone."""
        names = [one["secret"]["secretName"] for one in pod["spec"]["volumes"] if "secret" in one]
        return all(self.server.call("GET", f"{CORE}/secrets/{name}")[0] == 200 for name in names)

    def _end(self, uid: str, process: _Process) -> dict[str, Any]:
        code = process.child.returncode
        message = process.message.read_text()[:4096] if process.message.exists() else ""
        if code and not message:
            message = process.log.read_text(errors="replace")[-2048:]  # FallbackToLogsOnError
        status = code if code >= 0 else 128 - code
        ended = _state(terminated={"exitCode": status, "reason": "Error" if code else "Completed", "message": message})
        evicted = {"reason": "Evicted", "message": self._evicted[uid]} if uid in self._evicted else {}
        return {"phase": "Failed" if code or evicted else "Succeeded", "containerStatuses": [ended], **evicted}

    def _say(self, pod: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        self.server.call("PATCH", f"{PODS}/{pod['metadata']['name']}/status", {"status": status}, _MERGE)

    def _items(self, place: str) -> list[dict[str, Any]]:
        status, said = self.server.call("GET", place)
        if status != 200:
            raise OSError(said)
        found: list[dict[str, Any]] = said["items"]
        return found

    def _value(self, name: str, key: str) -> str:
        if name in self.values:
            return self.values[name]
        status, said = self.server.call("GET", f"{CORE}/secrets/{name}")
        assert status == 200, (name, said)
        return base64.b64decode(said["data"][key]).decode()

    def _log(self, pod: str) -> bytes | None:
        return self._names[pod].log.read_bytes() if pod in self._names else None


def _state(**state: Any) -> dict[str, Any]:
    return {"name": "rank", "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": state}
