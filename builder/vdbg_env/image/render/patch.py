"""A patch that arms an existing LeaderWorkerSet, Deployment or StatefulSet, in the form that kubectl takes for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vdbg_env.common.errors import BadInput
from vdbg_env.image.container.run_settings import DUMPS, DumpVolume
from vdbg_env.image.render.armed_start import armed_start
from vdbg_env.image.render.manifests import as_yaml, dump_volume

KINDS = ("LeaderWorkerSet", "Deployment", "StatefulSet")
_POD = ("spec", "template", "spec")
_GROUP = ("spec", "leaderWorkerTemplate")
_FOLDER = f"{DUMPS}/${{HOSTNAME:-pod}}"  # a pod's name, or its node's where it has the host's network
_GPU = "nvidia.com/gpu"
_START = "vdbg-env"  # what the shell of an armed start is called


@dataclass(frozen=True, kw_only=True)
class Arming:
    """What a patch sets: `variables` arm the driver, `image` replaces that of each armed container where it is given.

    `grace_s` is the least time between the request to end and SIGKILL.
    """

    variables: Mapping[str, str]
    dumps: DumpVolume
    grace_s: int
    image: str | None = None


@dataclass(frozen=True, kw_only=True)
class ArmingPatch:
    """The patch, how it is to be applied and taken back, and what it does not do."""

    text: str
    apply: str
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Change:
    """One value of the object to set: its path, as the keys and indices that lead there."""

    path: tuple[str | int, ...]
    value: Any


def arming_patch(text: str, name: str, arming: Arming) -> ArmingPatch:
    """Return the patch for the one object in `text` that has pods; `name` is the file's.

    Raises BadInput for a file without such an object, or with several.
    """
    found = _object(text, name)
    kind: Literal["json", "strategic"] = "json" if found["kind"] == "LeaderWorkerSet" else "strategic"
    notes: list[str] = []
    changes = list(_changes(found, arming, notes))
    document = _json_patch(found, changes) if kind == "json" else _strategic(found, changes)
    apply = _apply(found, kind)
    head = (
        "Rendered by vdbg-env.",
        f"Apply: {apply}",
        f"In a kustomization: patches: [{{path: patch.yaml, target: {{kind: {found['kind']}, name: {_name(found)}}}}}]",
        *notes,
    )
    return ArmingPatch(text=as_yaml(document, head), apply=apply, notes=tuple(notes))


# -- what is read ------------------------------------------------------------------------------------------------------


def _object(text: str, name: str) -> dict[str, Any]:
    import yaml

    try:
        documents = [found for found in yaml.safe_load_all(text) if found is not None]
    except yaml.YAMLError as error:
        raise BadInput(f"{name} is not YAML: {' '.join(str(error).split())}") from None
    objects = [item for found in documents for item in _items(found)]
    known = [found for found in objects if found.get("kind") in KINDS]
    if len(known) != 1:
        there = ", ".join(str(found.get("kind")) for found in objects) or "nothing"
        raise BadInput(
            f"{name} has {len(known) or 'no'} object{'s' * (len(known) > 1)} to arm",
            cause=f"one {', '.join(KINDS[:-1])} or {KINDS[-1]} is needed; the file has: {there}",
            next_step="kubectl get KIND NAME --output yaml > FILE",
        )
    if not _name(known[0]) or not list(_templates(known[0])):
        raise BadInput(f"the {known[0]['kind']} in {name} has no name, or no pod with a container")
    return known[0]


def _items(found: object) -> list[dict[str, Any]]:
    if not isinstance(found, dict):
        return []
    items = found.get("items") if str(found.get("kind", "")).endswith("List") else None
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else [found]


def _name(found: Mapping[str, Any]) -> str:
    metadata = found.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""


def _templates(found: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield the path and the content of each pod specification that has containers."""
    paths: list[tuple[str, ...]] = [_POD]
    if found["kind"] == "LeaderWorkerSet":
        paths = [(*_GROUP, which, "spec") for which in ("leaderTemplate", "workerTemplate")]
    for path in paths:
        at: Any = found
        for key in path:
            at = at.get(key) if isinstance(at, dict) else None
        containers = at.get("containers") if isinstance(at, dict) else None
        if isinstance(containers, list) and containers and all(isinstance(c, dict) and "name" in c for c in containers):
            yield path, at


def _armed(containers: list[dict[str, Any]]) -> list[int]:
    """Return which containers run the workload: those with GPUs, else the first, as kubectl has it."""
    with_gpu = [at for at, one in enumerate(containers) if _GPU in ((one.get("resources") or {}).get("limits") or {})]
    return with_gpu or [0]


# -- what is changed ---------------------------------------------------------------------------------------------------


def _changes(found: Mapping[str, Any], arming: Arming, notes: list[str]) -> Iterator[_Change]:
    if found["kind"] == "LeaderWorkerSet":
        yield _Change(path=(*_GROUP, "restartPolicy"), value="None")
        notes.append("With restartPolicy None a group that failed stays: its logs and restart counts can be read.")
    else:
        notes.append(f"The pods of a {found['kind']} restart always: Kubernetes allows no other policy there.")
    if arming.dumps.kind == "volume":
        name = arming.dumps.source
        notes.append(f"The claim {name} must be there, with ReadWriteMany where pods run on several nodes.")
    for path, pod in _templates(found):
        if int(pod.get("terminationGracePeriodSeconds") or 30) < arming.grace_s:
            yield _Change(path=(*path, "terminationGracePeriodSeconds"), value=arming.grace_s)
        containers = pod["containers"]
        armed = _armed(containers)
        for at in armed:
            yield from _of_container((*path, "containers", at), containers[at], arming, notes)
        mounted = all(_has(containers[at], "volumeMounts", "mountPath", DUMPS) for at in armed)
        if not mounted and not _has(pod, "volumes", "name", "dumps"):
            yield _Change(path=(*path, "volumes", "-"), value=dump_volume(arming.dumps))


def _of_container(
    path: tuple[str | int, ...], container: Mapping[str, Any], arming: Arming, notes: list[str]
) -> Iterator[_Change]:
    command = container.get("command")
    if arming.image:
        if not command:
            raise BadInput(
                f"container {container['name']} has no command, and another image has another entry point",
                next_step="write its command into FILE, as in command: [vllm, serve], or leave out --image",
            )
        yield _Change(path=(*path, "image"), value=arming.image)
    for name, value in arming.variables.items():
        own = next((one for one in container.get("env") or () if isinstance(one, dict) and one.get("name") == name), {})
        if own and own.get("value") != value:
            notes.append(
                f"Container {container['name']} has its own {name} ({own.get('value', 'from elsewhere')}), and guard "
                f"keeps it; the patch sets {value} where FILE has none."
            )
    if command:
        if command[:2] == ["/bin/sh", "-c"] and command[3:4] == [_START]:  # armed by an earlier patch
            command = command[4:]
        start = armed_start(_FOLDER, {name: _here(value) for name, value in arming.variables.items()})
        yield _Change(path=(*path, "command"), value=["/bin/sh", "-c", start, _START, *map(str, command)])
    else:
        notes.append(
            f"Container {container['name']} has no command in the file: it is armed by variables, and not guarded."
        )
        for name, value in arming.variables.items():
            if not _has(container, "env", "name", name):
                yield _Change(path=(*path, "env", "-"), value={"name": name, "value": value})
    if not _has(container, "volumeMounts", "mountPath", DUMPS):
        yield _Change(path=(*path, "volumeMounts", "-"), value={"name": "dumps", "mountPath": DUMPS})


def _here(value: str) -> str:
    return value.replace(DUMPS, "$here", 1) if value.startswith(DUMPS) else value


def _has(holder: Mapping[str, Any], field: str, key: str, value: str) -> bool:
    return any(isinstance(one, dict) and one.get(key) == value for one in holder.get(field) or ())


# -- how it is written -------------------------------------------------------------------------------------------------


def _json_patch(found: Mapping[str, Any], changes: list[_Change]) -> list[dict[str, Any]]:
    """Return the changes by RFC 6902: lists are extended, and each container is named before it is changed.

    A strategic patch is refused for custom resources, and a merge patch would replace their lists of containers.
    """
    operations: list[dict[str, Any]] = []
    made: set[tuple[str | int, ...]] = set()
    for change in changes:
        if "containers" in change.path:
            container = change.path[: change.path.index("containers") + 2]
            if container not in made:
                made.add(container)
                name = _at(found, container)["name"]
                operations.append({"op": "test", "path": _pointer((*container, "name")), "value": name})
        path, value = change.path, change.value
        if path[-1] == "-" and path[:-1] not in made and not _at(found, path[:-1]):
            path, value = path[:-1], [value]
        made.add(change.path[:-1])
        operations.append({"op": "add", "path": _pointer(path), "value": value})
    return operations


def _strategic(found: Mapping[str, Any], changes: list[_Change]) -> dict[str, Any]:
    """Return the changes as kubectl merges them: containers, variables and volumes by their names."""
    patch: dict[str, Any] = {}
    for change in changes:
        at: Any = patch
        path = change.path
        for index, key in enumerate(path[:-1]):
            follows = path[index + 1]
            if isinstance(key, int):
                continue
            at = at.setdefault(key, [] if isinstance(follows, int) or follows == "-" else {})
            if isinstance(follows, int):
                at = _named(at, _at(found, path[: index + 2])["name"])
        if path[-1] == "-":
            at.append(change.value)
        else:
            at[path[-1]] = change.value
    return patch


def _named(containers: list[dict[str, Any]], name: str) -> dict[str, Any]:
    for one in containers:
        if one["name"] == name:
            return one
    containers.append({"name": name})
    return containers[-1]


def _at(found: Mapping[str, Any], path: tuple[str | int, ...]) -> Any:
    at: Any = found
    for key in path:
        at = at[key] if isinstance(key, int) else at.get(key)
        if at is None:
            return None
    return at


def _pointer(path: tuple[str | int, ...]) -> str:
    return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in path)


def _apply(found: Mapping[str, Any], kind: str) -> str:
    namespace = found["metadata"].get("namespace")
    where = f" --namespace {namespace}" if namespace else ""
    return f"kubectl patch {found['kind'].lower()} {_name(found)}{where} --type {kind} --patch-file patch.yaml"
