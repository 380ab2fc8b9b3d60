"""Read from a pod's status what became of its rank."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

INDEX = "batch.kubernetes.io/job-completion-index"
# The kubelet's reasons for an image, or a container, that it cannot start; the first ones do not change by waiting.
_HOPELESS = {"InvalidImageName", "ErrImageNeverPull"}
_IMAGE = {"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", *_HOPELESS}
_CONTAINER = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}


@dataclass(frozen=True, kw_only=True)
class Pod:
    """One pod: `gone` when it was deleted, `over` when its containers will not run again.

    `waits` says why its rank has not started, `failed` why it was ended from outside; both are empty otherwise.
    `hopeless` says that waiting will not help, `code` is its supervisor's exit status, and `said` the end that it wrote
    as its termination `message`.
    """

    name: str
    uid: str
    rank: int
    node: str = ""
    over: bool = False
    gone: bool = False
    waits: str = ""
    hopeless: bool = False
    failed: str = ""
    code: int | None = None
    said: Mapping[str, Any] | None = None
    message: str = ""


def read_pod(document: Mapping[str, Any], *, gone: bool = False) -> Pod | None:
    """Return what is known of a pod; None for one that is no rank's."""
    metadata, status = document["metadata"], document.get("status") or {}
    marks: dict[str, str] = {**(metadata.get("annotations") or {}), **(metadata.get("labels") or {})}
    index = marks.get(INDEX)
    if index is None:
        return None
    statuses: list[dict[str, Any]] = status.get("containerStatuses") or []
    state = next((one.get("state") or {} for one in statuses if one.get("name") == "rank"), {})
    terminated, waiting = state.get("terminated") or {}, state.get("waiting") or {}
    message = str(terminated.get("message") or "").strip()
    reason = str(waiting.get("reason") or "")
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        rank=int(index),
        node=(document.get("spec") or {}).get("nodeName") or "",
        over=gone or status.get("phase") in {"Succeeded", "Failed"},
        gone=gone,
        waits=_waits(status, waiting, reason),
        hopeless=reason in _HOPELESS,
        failed=_failed(status, terminated, deleted=bool(metadata.get("deletionTimestamp"))),
        code=terminated.get("exitCode"),
        said=_said(message),
        message=message,
    )


def _waits(status: Mapping[str, Any], waiting: Mapping[str, Any], reason: str) -> str:
    words = f"{reason}: {waiting['message']}" if waiting.get("message") else reason
    if reason in _IMAGE:
        return f"its image cannot be pulled: {words}"
    if reason in _CONTAINER:
        return f"its container cannot be started: {words}"
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return f"no node can take it: {scheduled.get('message') or scheduled.get('reason')}"
    started = status.get("phase") in {"Running", "Succeeded", "Failed"}
    return "" if started else f"it is not started yet{f': {words}' if words else ''}"


def _failed(status: Mapping[str, Any], terminated: Mapping[str, Any], *, deleted: bool) -> str:
    """Return who ended a pod other than its rank."""
    disrupted = _condition(status, "DisruptionTarget")
    if status.get("reason") == "Evicted" or disrupted.get("status") == "True":
        words = status.get("message") or disrupted.get("message") or disrupted.get("reason") or ""
        return f"its pod was evicted: {words}".rstrip(": ")
    if terminated.get("reason") == "OOMKilled":
        return "out of memory: the kernel killed its supervisor, or the whole container"
    if status.get("reason"):  # NodeLost, Shutdown, NodeAffinity, UnexpectedAdmissionError, DeadlineExceeded
        return f"its pod failed: {status['reason']}: {status.get('message') or ''}".rstrip(": ")
    return "its pod was deleted" if deleted else ""


def _condition(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next((one for one in status.get("conditions") or () if one.get("type") == name), {})


def _said(message: str) -> Mapping[str, Any] | None:
    """Return the end of a rank, as it wrote it for the kubelet."""
    try:
        document = json.loads(message)
    except ValueError:
        return None
    return document if isinstance(document, dict) and "by" in document else None
