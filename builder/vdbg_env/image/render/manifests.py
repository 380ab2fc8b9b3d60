"""Run settings as a Compose file and a Kubernetes manifest."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from vdbg_env.common.errors import BadInput
from vdbg_env.image.container.run_settings import DUMPS, GIB, SECCOMP_FILE, UNLIMITED, DumpVolume, RunSettings

_NAME = "vdbg-debug"
KUBELET_SECCOMP = "/var/lib/kubelet/seccomp"
LOCALHOST_PROFILE = f"vdbg-env/{SECCOMP_FILE}"


def compose(settings: RunSettings, *, build: str | None = None) -> str:
    """Return a Compose file with the container as its one service; `build` is the folder of its Dockerfile."""
    service: dict[str, Any] = {
        "image": settings.image,
        "build": build,
        "command": [_literal(word) for word in settings.command] or None,
        "environment": {name: _literal(value) for name, value in settings.env} or None,
        "cap_drop": ["ALL"],
        "cap_add": list(settings.capabilities) or None,
        "security_opt": ["no-new-privileges:true", *_seccomp(settings)],
        "pids_limit": settings.pids,
        "ulimits": {u.name: {"soft": u.soft, "hard": u.hard} for u in settings.ulimits} or None,
        "ipc": "host" if settings.ipc == "host" else None,
        "shm_size": settings.shm_bytes if settings.ipc == "private" else None,
        "ports": [f"127.0.0.1:{port}:{port}" for port in settings.ports] or None,
        "volumes": [f"{settings.dumps.source}:{DUMPS}"] if settings.dumps else None,
        "stop_grace_period": f"{settings.stop_grace_s}s",
        "deploy": _compose_devices(settings),
        "stdin_open": settings.interactive or None,
        "tty": settings.interactive or None,
    }
    document: dict[str, Any] = {
        "services": {settings.name or "debug": {key: value for key, value in service.items() if value is not None}}
    }
    if settings.dumps and settings.dumps.kind == "volume":
        document["volumes"] = {settings.dumps.source: {"name": settings.dumps.source}}
    return as_yaml(document, _notes(settings))


def kubernetes(settings: RunSettings) -> str:
    """Return a manifest: a Pod, and a claim for its dump volume if that has a name.

    Raises BadInput for settings that Kubernetes does not have.
    """
    container: dict[str, Any] = {
        "name": "debug",
        "image": settings.image,
        "args": [_literal(word) for word in settings.command] or None,
        "env": [{"name": name, "value": _literal(value)} for name, value in settings.env] or None,
        "ports": [{"containerPort": port} for port in settings.ports] or None,
        "resources": devices(settings),
        "securityContext": security_context(settings),
        "volumeMounts": _mounts(settings) or None,
        "stdin": settings.interactive or None,
        "tty": settings.interactive or None,
    }
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": _kubernetes_name(settings.name or _NAME),
            "labels": {"app.kubernetes.io/managed-by": "vdbg-env"},
        },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": settings.stop_grace_s,
            **({"hostIPC": True} if settings.ipc == "host" else {}),
            "containers": [{key: value for key, value in container.items() if value is not None}],
            "volumes": _volumes(settings),
        },
    }
    notes = [n for n in _notes(replace(settings, ulimits=())) if "seccomp" not in n]
    if settings.seccomp == "ptrace":
        notes.append(f"Every node needs {KUBELET_SECCOMP}/{LOCALHOST_PROFILE}; not with --seccomp default.")
    notes.append("Kubernetes sets no ulimits: the image's entry point raises the core limit as far as the node allows.")
    documents = [as_yaml(pod, tuple(notes))]
    if settings.dumps and settings.dumps.kind == "volume":
        documents.append(
            as_yaml(
                _claim(settings.dumps.source),
                ("Room for a few dumps: one may be as large as the GPU's memory.",),
            )
        )
    return "---\n".join(documents)


def _literal(text: str) -> str:
    """Return a text that Compose and Kubernetes take as it is: both fill in variables, and both take `$$` for `$`."""
    return text.replace("$", "$$")


def _seccomp(settings: RunSettings) -> tuple[str, ...]:
    match settings.seccomp:
        case "ptrace":
            return (f"seccomp=./{SECCOMP_FILE}",)
        case "unconfined":
            return ("seccomp=unconfined",)
        case "default":
            return ()


def _compose_devices(settings: RunSettings) -> dict[str, Any] | None:
    if settings.gpu.by == "none":
        return None
    device: dict[str, Any] = {"capabilities": ["gpu"]}
    if settings.gpu.by == "cdi":
        device |= {"driver": "cdi", "device_ids": list(settings.gpu.names)}
    elif settings.gpu.devices:
        device |= {"driver": "nvidia", "device_ids": list(settings.gpu.devices)}
    else:
        device |= {"driver": "nvidia", "count": "all"}
    return {"resources": {"reservations": {"devices": [device]}}}


def devices(settings: RunSettings) -> dict[str, Any] | None:
    """Return a container's GPUs: a single number is how many, several are counted, and without any it is one."""
    devices = settings.gpu.devices
    if settings.gpu.by == "none":
        return None
    if (settings.gpu.by == "cdi" and devices) or any(not name.isdigit() for name in devices):
        raise BadInput(
            "Kubernetes gives GPUs by number, not by name",
            next_step="--gpu runtime:8 for eight; the device plugin picks them",
        )
    count = int(devices[0]) if len(devices) == 1 else len(devices)
    return {"limits": {"nvidia.com/gpu": max(1, count)}}


def security_context(settings: RunSettings) -> dict[str, Any]:
    """Return a container's rights."""
    profile: dict[str, str] = {"type": "RuntimeDefault"}
    if settings.seccomp == "ptrace":  # the runtime's own refuses personality(2), by which gdb turns off randomisation
        profile = {"type": "Localhost", "localhostProfile": LOCALHOST_PROFILE}
    elif settings.seccomp == "unconfined":
        profile = {"type": "Unconfined"}
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": list(settings.capabilities)},
        "seccompProfile": profile,
    }


def _mounts(settings: RunSettings) -> list[dict[str, str]]:
    dumps = [{"name": "dumps", "mountPath": DUMPS}] if settings.dumps else []
    shared = [{"name": "shm", "mountPath": "/dev/shm"}] if settings.ipc == "private" else []
    return dumps + shared


def dump_volume(dumps: DumpVolume) -> dict[str, Any]:
    """Return a pod's volume for dumps: a folder of the node, or a claim."""
    if dumps.kind == "bind":
        return {"name": "dumps", "hostPath": {"path": dumps.source, "type": "DirectoryOrCreate"}}
    return {"name": "dumps", "persistentVolumeClaim": {"claimName": _kubernetes_name(dumps.source)}}


def _volumes(settings: RunSettings) -> list[dict[str, Any]]:
    volumes = [dump_volume(settings.dumps)] if settings.dumps else []
    if settings.ipc == "private":
        volumes.append(shared_memory(settings))
    return volumes


def shared_memory(settings: RunSettings) -> dict[str, Any]:
    """Return a pod's volume for /dev/shm."""
    size = f"{max(1, settings.shm_bytes // GIB)}Gi"
    return {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}


def _claim(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": _kubernetes_name(name), "labels": {"app.kubernetes.io/managed-by": "vdbg-env"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "500Gi"}}},
    }


def _kubernetes_name(name: str) -> str:
    """Return a name by the rules of RFC 1123, which every object of a cluster must follow."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:63] or _NAME


def _notes(settings: RunSettings) -> tuple[str, ...]:
    notes = ["Rendered by vdbg-env."]
    raised = [u for u in settings.ulimits if u.hard == UNLIMITED and u.name == "memlock"]
    notes += [f"If the engine may not raise {u.name}, remove it: {u.fallback}." for u in raised]
    if settings.seccomp == "ptrace":
        notes.append(f"{SECCOMP_FILE} is next to this file: it allows a debugger, and nothing that changes the host.")
    return tuple(notes)


def as_yaml(document: object, notes: tuple[str, ...]) -> str:
    """Return YAML that is safe for readers of version 1.1: every text that is not a plain word is quoted."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def represent_str(self, data: str) -> yaml.ScalarNode:
            plain = data.replace("-", "").replace("_", "").replace("/", "").replace(".", "").isalpha()
            ambiguous = not plain or data.lower() in {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
            # A block keeps no line break but the usual one: a reader makes it of the others.
            block = "\n" in data and not set("\r\x85\u2028\u2029") & set(data)
            style = "|" if block else '"' if ambiguous else None
            return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    Dumper.add_representer(str, Dumper.represent_str)
    body = yaml.dump(document, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1000)
    return "".join(f"# {note}\n" for note in notes) + body
