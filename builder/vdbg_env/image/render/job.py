"""The objects of one attempt on Kubernetes: an Indexed Job, its headless Service, and a Secret with its orders."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vdbg_env.image.container.pod_settings import PodSettings, PodVolume
from vdbg_env.image.container.step_container import PACKAGES
from vdbg_env.image.render.manifests import devices, security_context, shared_memory

ORDERS = "/run/vdbg-env-orders"  # where a rank's pod has its orders
NODE_NAME = "VDBG_NODE_NAME"
TERMINATION_LOG = {"name": "VDBG_TERMINATION_LOG", "value": "/dev/termination-log"}  # where a rank writes its end
MANAGED = {"app.kubernetes.io/managed-by": "vdbg-env"}
ATTEMPT = "vdbg-env/attempt"  # the label that only the objects of one attempt have
_VARIABLE = "env."  # before the name of a variable, as a key of the Secret


@dataclass(frozen=True, kw_only=True)
class RankPods:
    """The pods of one attempt: `start` are the words that start a rank, `user` that of its processes where it is set.

    `folder` is the attempt's and `package` that of our package, both on a volume that pods see.
    `grace_s` is what a rank needs from the request to end to its last record; `limit_s` ends pods that no engine
    follows any longer.
    """

    name: str
    token: str
    ranks: int
    nodes: int
    start: tuple[str, ...]
    folder: str
    package: str
    grace_s: float
    user: tuple[int, int] | None = None
    limit_s: float | None = None


def job(pods: RankPods, settings: PodSettings) -> dict[str, Any]:
    """Return the Job, suspended: no pod starts before its orders are there.

    Each index has one try, and none ends the others: a sibling that is killed may have been about to write the dump
    that explains the crash. The Job stays when it has ended, as its pods are evidence.
    """
    limit = {} if pods.limit_s is None else {"activeDeadlineSeconds": math.ceil(pods.limit_s)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**_metadata(pods), "annotations": {"vdbg-env/folder": pods.folder}},
        "spec": {
            "suspend": True,
            "completionMode": "Indexed",
            "completions": pods.ranks,
            "parallelism": pods.ranks,
            "backoffLimitPerIndex": 0,
            "maxFailedIndexes": pods.ranks,
            "podReplacementPolicy": "Failed",
            **limit,
            "template": {"metadata": {"labels": _labels(pods)}, "spec": _pod(pods, settings)},
        },
    }


def service(pods: RankPods, owner: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headless Service that gives each rank a name, before it is ready too: ranks wait for each other."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {**_metadata(pods), "ownerReferences": [_reference(owner)]},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {ATTEMPT: pods.token}},
    }


def secret(pods: RankPods, owner: Mapping[str, Any], orders: bytes, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the Secret with the orders and the values of variables: a Job can be read by more people than a Secret."""
    data = {"orders": orders, **{_VARIABLE + name: value.encode() for name, value in variables.items()}}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {**_metadata(pods), "ownerReferences": [_reference(owner)]},
        "type": "Opaque",
        "immutable": True,
        "data": {name: base64.b64encode(value).decode() for name, value in data.items()},
    }


def _metadata(pods: RankPods) -> dict[str, Any]:
    return {"name": pods.name, "labels": _labels(pods)}


def _labels(pods: RankPods) -> dict[str, str]:
    return {**MANAGED, ATTEMPT: pods.token}


def _reference(owner: Mapping[str, Any]) -> dict[str, Any]:
    metadata = owner["metadata"]
    return {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}


def _pod(pods: RankPods, settings: PodSettings) -> dict[str, Any]:
    run = settings.run
    names = [name for name, _ in run.env]
    home = [{"name": "HOME", "value": "/tmp"}] if pods.user and "HOME" not in names else []
    limits = dict((devices(run) or {}).get("limits", {}))
    if run.memory:
        limits["memory"] = str(run.memory)
    container: dict[str, Any] = {
        "name": "rank",
        "image": run.image,
        "command": list(pods.start),
        "env": [
            {"name": NODE_NAME, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            TERMINATION_LOG,
            *home,
            *(
                {"name": name, "valueFrom": {"secretKeyRef": {"name": pods.name, "key": _VARIABLE + name}}}
                for name in names
            ),
        ],
        "envFrom": [_source(text) for text in settings.env_from],
        "resources": {"limits": limits} if limits else None,
        "securityContext": security_context(run),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "orders", "mountPath": ORDERS, "readOnly": True},
            *({"name": f"volume-{at}", "mountPath": one.path} for at, one in enumerate(settings.volumes)),
            _package_mount(pods.package, settings),
        ],
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "subdomain": pods.name,
        "terminationGracePeriodSeconds": math.ceil(pods.grace_s),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [{key: value for key, value in container.items() if value}],
        "volumes": [
            {"name": "orders", "secret": {"secretName": pods.name, "items": [{"key": "orders", "path": "orders"}]}},
            *({"name": f"volume-{at}", **_volume(one)} for at, one in enumerate(settings.volumes)),
        ],
    }
    if run.ipc == "host":
        spec["hostIPC"] = True
    else:
        spec["containers"][0]["volumeMounts"].append({"name": "shm", "mountPath": "/dev/shm"})
        spec["volumes"].append(shared_memory(run))
    if pods.user:
        spec["securityContext"] = {"runAsUser": pods.user[0], "runAsGroup": pods.user[1]}
    if pods.nodes > 1:
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "minDomains": pods.nodes,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {ATTEMPT: pods.token}},
            }
        ]
    merged: dict[str, Any] = overlaid(spec, settings.overlay)
    return merged


def overlaid(base: Any, change: Any) -> Any:
    """Return a value with a change merged in: mappings by key, lists of named things by name, all else replaced."""
    if isinstance(base, dict) and isinstance(change, Mapping):
        merged = dict(base)
        for key, value in change.items():
            merged[key] = overlaid(base.get(key), value)
            if value is None:
                del merged[key]
        return merged
    if _are_named(base) and _are_named(change):
        names = [one["name"] for one in base]
        changed = {one["name"]: one for one in change}
        return [overlaid(one, changed.get(one["name"], {})) for one in base] + [
            one for one in change if one["name"] not in names
        ]
    return change


def _are_named(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) and "name" in one for one in value)


def _package_mount(package: str, settings: PodSettings) -> dict[str, Any]:
    found = settings.found_on(package)
    assert found, "the run's folder is on a volume, and the package next to it"
    volume, path = found
    return {"name": f"volume-{volume}", "mountPath": PACKAGES, "subPath": path, "readOnly": True}


def _source(text: str) -> dict[str, Any]:
    kind, _, name = text.partition("/")
    return {"secretRef" if kind == "secret" else "configMapRef": {"name": name}}


def _volume(volume: PodVolume) -> dict[str, Any]:
    match volume.kind:
        case "pvc":
            return {"persistentVolumeClaim": {"claimName": volume.source}}
        case "nfs":
            return {"nfs": {"server": volume.server, "path": volume.source}}
        case "host":
            return {"hostPath": {"path": volume.source, "type": "Directory"}}
