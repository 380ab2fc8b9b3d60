"""A patch for an object that has pods already: armed, or with a runbook, and the patch that takes it back."""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from vdbg_env.common.errors import BadInput
from vdbg_env.image.manifests import armed_start, as_yaml, debugged_start, dump_volume
from vdbg_env.image.settings import DUMPS, DumpVolume

KINDS = ("LeaderWorkerSet", "JobSet", "Deployment", "StatefulSet", "Job")
_CUSTOM = {"LeaderWorkerSet", "JobSet"}  # a strategic patch is refused for them, and a merge patch replaces lists
_FIXED = {"JobSet", "Job"}  # their pods cannot be changed: the object is made again
Kind = Literal["json", "strategic"]
Path = tuple[str | int, ...]
_POD: Path = ("spec", "template", "spec")
_GROUP: Path = ("spec", "leaderWorkerTemplate")
_JOBS: Path = ("spec", "replicatedJobs")
_FOLDER = f"{DUMPS}/${{HOSTNAME:-pod}}"  # a pod's name, or its node's where it has the host's network
_GPU = "nvidia.com/gpu"
_GPUS = (_GPU, "nvidia.com/mig-")
_VOLUMES = ("dumps", "vdbg-dumps", "vdbg-guard-dumps")
_START = "vdbg-env"  # what the shell of an armed start is called
_MESSAGE = "/dev/termination-log"
_TYPES: Mapping[type, str] = {dict: "a mapping", list: "a list", int: "a whole number"}
_NAMES = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")
_GONE: Any = object()  # the value of a field that is removed
PATCH, UNDO, OBJECT = "patch.yaml", "undo.yaml", "object.yaml"
# What a cluster adds to an object, and what it would refuse of one that is made again.
_ADDED = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink")
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_JOB_LABELS = ("controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name")


@dataclass(frozen=True, kw_only=True)
class Arming:
    """What a patch sets: `variables` arm the driver, `image` replaces that of each armed container where it is given.

    `grace_s` is the least time between the request to end and SIGKILL. With a `runbook` the container runs that once,
    with `inputs`, and its command is the workload; without one it is guarded. `volume` is what pods call that of dumps.
    """

    variables: Mapping[str, str]
    dumps: DumpVolume
    grace_s: int
    image: str | None = None
    runbook: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)
    volume: str = "dumps"


@dataclass(frozen=True, kw_only=True)
class ArmingPatch:
    """The patch, the one that takes it back, the object as patched, how to apply them, and what they do not do.

    `workloads` are the command lines that it starts, as FILE has them.
    """

    text: str
    undo: str
    object: str
    apply: str
    notes: tuple[str, ...]
    workloads: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class _Change:
    """One value of the object to set: its path, as the keys and indices that lead there."""

    path: Path
    value: Any


def arming_patch(text: str, name: str, arming: Arming) -> ArmingPatch:
    """Return the patch for the one object in `text` that has pods; `name` is the file's.

    Raises BadInput for a file without such an object, or with several.
    """
    found = _object(text, name)
    kind: Kind = "json" if found["kind"] in _CUSTOM else "strategic"
    notes: list[str] = []
    changes = list(_changes(found, arming, notes))
    workload = [pod["containers"][at] for _, pod in _templates(found) for at in _armed(pod["containers"])]
    if any(_is_armed(container, arming) for container in workload):
        notes.append(f"FILE is armed already: {UNDO} brings that back, not what it was before.")
    write = _json_patch if kind == "json" else _strategic
    undo = _json_undo if kind == "json" else _strategic_undo
    apply, back = (_apply(found, kind, file) for file in (PATCH, UNDO))
    target = f"{{kind: {found['kind']}, name: {_name(found)}}}"
    head = (
        "Rendered by vdbg-env.",
        f"Apply: {apply}",
        f"In a kustomization: patches: [{{path: {PATCH}, target: {target}}}]",
        f"Take it back: {back}",
        *notes,
    )
    return ArmingPatch(
        text=as_yaml(write(found, changes), head),
        undo=as_yaml(undo(found, changes), ("Rendered by vdbg-env.", f"Apply: {back}")),
        object=as_yaml(_made_again(_changed(found, changes)), ("Rendered by vdbg-env: the object as patched.",)),
        apply=apply,
        notes=tuple(notes),
        workloads=tuple((*_own_command(container), *_words(container, "args")) for container in workload),
    )


# -- what is read ------------------------------------------------------------------------------------------------------


MOST_BYTES = 4 << 20  # a hundred objects as kubectl prints them have fewer
_MOST_DEPTH = 64
_MOST_VALUES = 200_000  # with what anchors repeat


def _object(text: str, name: str) -> dict[str, Any]:
    import yaml

    if len(text) > MOST_BYTES:
        raise BadInput(
            f"{name} is longer than {MOST_BYTES >> 20} MiB, the most that is read",
            cause="another file, or the objects of a whole cluster",
            next_step="kubectl get KIND NAME --output yaml > FILE",
        )
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _refuse_too_large(yaml.parse(text, Loader=loader), name)
        documents = [found for found in yaml.load_all(text, Loader=loader) if found is not None]
    except (ValueError, OverflowError, RecursionError) as error:  # a date or a number that Python does not have
        raise BadInput(f"{name} has a value that cannot be read: {error}") from None
    except yaml.YAMLError as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        said = (error.problem if isinstance(error, yaml.MarkedYAMLError) else None) or str(error).splitlines()[0]
        raise BadInput(f"{name}{place}: is not YAML: {said}") from None
    objects = [item for found in documents for item in _items(found)]
    known = [found for found in objects if found.get("kind") in KINDS]
    if len(known) != 1:
        there = ", ".join(str(found.get("kind")) for found in objects) or "nothing"
        raise BadInput(
            f"{name} has {len(known) or 'no'} object{'s' * (len(known) > 1)} to arm",
            cause=f"one {', '.join(KINDS[:-1])} or {KINDS[-1]} is needed; the file has: {there}",
            next_step="kubectl get KIND NAME --output yaml > FILE",
        )
    _refuse_other_types(known[0], name)
    if not _name(known[0]) or not list(_templates(known[0])):
        raise BadInput(f"the {known[0]['kind']} in {name} has no name, or no pod with a container")
    _refuse_names(known[0], name)
    return known[0]


def _refuse_too_large(events: Iterable[Any], name: str) -> None:
    """Raise BadInput for values that are nested too deep, or too many where each anchor's are written out."""
    import yaml

    sizes: dict[str, int] = {}
    opened: list[tuple[str | None, int]] = [(None, 0)]  # the anchor of each open value, and how many are in it
    for event in events:
        added = 1
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, 1))
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, added = opened.pop()
            sizes |= {anchor: added} if anchor else {}
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in opened):
                raise BadInput(f"{name} has the anchor {event.anchor!r} within itself")
            added = sizes.get(event.anchor or "", 1)
        elif isinstance(event, yaml.ScalarEvent):
            sizes |= {event.anchor: 1} if event.anchor else {}
        anchor, size = opened[-1]
        opened[-1] = (anchor, size + added)
        if len(opened) > _MOST_DEPTH or size + added > _MOST_VALUES:
            what = f"more than {_MOST_VALUES:,} values, those of its anchors written out"
            raise BadInput(f"{name} has {what if size + added > _MOST_VALUES else 'values nested too deep'}")


def _refuse_names(found: dict[str, Any], name: str) -> None:
    """Raise BadInput for a name that Kubernetes does not take: it goes into commands and comments as it is."""
    metadata = found["metadata"]
    for field_name in ("name", "namespace"):
        value = metadata.get(field_name)
        if value is not None and not (isinstance(value, str) and len(value) <= 253 and _NAMES.fullmatch(value)):
            raise BadInput(
                f"the {field_name} of the {found['kind']} in {name} is {value!r:.100}",
                cause="Kubernetes takes small letters, digits, hyphens and dots (RFC 1123)",
            )


def _refuse_other_types(found: dict[str, Any], name: str) -> None:
    """Raise BadInput for a field that is read or extended here and has another type than Kubernetes takes."""
    for path, wanted in _typed_fields(found):
        value = _at(found, path)
        if value is not None and (not isinstance(value, wanted) or isinstance(value, bool)):
            field = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)[1:]
            raise BadInput(
                f"`{field}` of the {found['kind']} in {name} is not {_TYPES[wanted]}",
                cause="Kubernetes refuses such an object too",
            )


def _typed_fields(found: dict[str, Any]) -> Iterator[tuple[Path, type]]:
    for holder in (("metadata",), ("spec", "template", "metadata")):
        yield from (((*holder, *field), dict) for field in ((), ("annotations",), ("labels",)))
    yield from ((("spec", count), int) for count in ("replicas", "parallelism"))
    yield _JOBS, list
    yield from (((*_JOBS, at), dict) for at in range(len(_at(found, _JOBS) or ())))
    for path, pod in _templates(found):
        yield (*path, "terminationGracePeriodSeconds"), int
        yield (*path, "volumes"), list
        for at in range(len(pod["containers"])):
            yield from (((*path, "containers", at, field), list) for field in ("env", "volumeMounts"))


def _items(found: object) -> list[dict[str, Any]]:
    if not isinstance(found, dict):
        return []
    items = found.get("items") if str(found.get("kind", "")).endswith("List") else None
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else [found]


def _name(found: Mapping[str, Any]) -> str:
    metadata = found.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""


def _templates(found: Mapping[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the path and the content of each pod specification that has containers."""
    paths: list[Path] = [_POD]
    if found["kind"] == "LeaderWorkerSet":
        paths = [(*_GROUP, which, "spec") for which in ("leaderTemplate", "workerTemplate")]
    if found["kind"] == "JobSet":
        paths = [(*_JOBS, at, "template", *_POD) for at in range(len(_at(found, _JOBS) or ()))]
    for path in paths:
        at = _at(found, path)
        containers = at.get("containers") if isinstance(at, dict) else None
        if isinstance(containers, list) and containers and all(isinstance(c, dict) and "name" in c for c in containers):
            yield path, at


def _armed(containers: list[dict[str, Any]]) -> list[int]:
    """Return which containers run the workload: those with GPUs, else the first, as kubectl has it."""
    return _with_gpus(containers) or [0]


def _with_gpus(containers: list[dict[str, Any]]) -> list[int]:
    return [at for at, one in enumerate(containers) if _wants_gpu(_mapping(_mapping(one, "resources"), "limits"))]


def _wants_gpu(limits: dict[str, Any]) -> bool:
    """Whether a limit is of a GPU, or of a part of one: `nvidia.com/mig-3g.40gb`, `nvidia.com/gpu.shared`."""
    return any(str(name).startswith(_GPUS) and str(count) != "0" for name, count in limits.items())


def _mapping(of: dict[str, Any], name: str) -> dict[str, Any]:
    found = of.get(name)
    return found if isinstance(found, dict) else {}


# -- what is changed ---------------------------------------------------------------------------------------------------


def _changes(found: Mapping[str, Any], arming: Arming, notes: list[str]) -> Iterator[_Change]:
    yield from _of_object(found, arming, notes)
    of_object, takes = len(notes), False
    templates = list(_templates(found))
    for path, pod in templates:
        if not _with_gpus(pod["containers"]):
            notes.append(f"No container has a limit of {_GPU}, so the first is armed: {pod['containers'][0]['name']}.")
        if (pod.get("terminationGracePeriodSeconds") or 30) < arming.grace_s:
            yield _Change(path=(*path, "terminationGracePeriodSeconds"), value=arming.grace_s)
        if arming.runbook and found["kind"] in _FIXED and pod.get("restartPolicy") != "Never":
            yield _Change(path=(*path, "restartPolicy"), value="Never")
        containers = pod["containers"]
        armed = _armed(containers)
        mounted = all(_has(containers[at], "volumeMounts", "mountPath", DUMPS) for at in armed)
        arming = replace(arming, volume=_VOLUMES[0] if mounted else _free_volume(pod))
        follows = bool(arming.runbook) and "workerTemplate" in path and len(templates) > 1
        if arming.runbook and not follows and len(armed) > 1:
            raise BadInput(
                f"several containers of one pod request GPUs: {', '.join(containers[at]['name'] for at in armed)}",
                cause="a runbook starts one command, and its record has one folder for each pod",
                next_step=f"leave the limit of {_GPU} out of FILE for all but one, and render again",
            )
        for at in armed:
            where = (*path, "containers", at)
            if follows:  # its leader runs the runbook
                yield from _mounted(where, containers[at], arming)
            elif arming.runbook:
                yield from _debugged(where, containers[at], arming)
            else:
                yield from _of_container(where, containers[at], arming, notes)
        if not mounted and not _has(pod, "volumes", "name", arming.volume):
            takes = True
            yield _Change(path=(*path, "volumes", "-"), value={**dump_volume(arming.dumps), "name": arming.volume})
            notes += [
                f"Container {containers[at]['name']} does not run as root, and its pod has no fsGroup: the volume for "
                f"{DUMPS} must let its user write, or there is no record."
                for at in armed
                if _may_not_write(pod, containers[at])
            ]
        else:
            notes.append(
                f"Dumps go to the volume that the pod has for {DUMPS}; if that is an emptyDir, they end with the pod."
            )
    if takes and arming.dumps.kind == "volume":
        name = arming.dumps.source
        claim = f"The claim {name} must be there, with ReadWriteMany where pods run on several nodes."
        notes.insert(of_object, claim)


def _of_object(found: Mapping[str, Any], arming: Arming, notes: list[str]) -> Iterator[_Change]:
    """Yield what is changed outside of pods, and note what the kind means for them."""
    kind, spec = found["kind"], found["spec"]
    if kind == "LeaderWorkerSet":
        # Under guard a group that fails is made again as before: a rank that is started alone would serve nothing.
        if arming.runbook:
            if _at(found, (*_GROUP, "restartPolicy")) != "None":
                yield _Change(path=(*_GROUP, "restartPolicy"), value="None")
                notes.append("Its restartPolicy becomes None: its group is not made again while the runbook works.")
            notes.append("The leader runs the runbook; workers start as they do, which fits those that join Ray.")
    elif kind in _FIXED:
        notes.append(f"The pods of a {kind} cannot be changed, so it is deleted and made again.")
        if arming.runbook:
            yield from _one_try(found)
    else:
        notes.append(f"The pods of a {kind} restart always: Kubernetes allows no other policy there.")
    several = kind in {"Deployment", "StatefulSet"} and (spec.get("replicas") or 1) > 1
    if arming.runbook and (several or (kind == "Job" and (spec.get("parallelism") or 1) > 1)):
        notes.append("Each of its pods runs the runbook, on its own: for one, set replicas or parallelism to 1 first.")


def _one_try(found: Mapping[str, Any]) -> Iterator[_Change]:
    """Yield that no pod is started again after its runbook, and that none is ended or removed before it is read."""
    jobs: list[Path] = [("spec",)]
    if found["kind"] == "JobSet":
        jobs = [(*_JOBS, at, "template", "spec") for at in range(len(_at(found, _JOBS) or ()))]
        yield _Change(path=("spec", "failurePolicy"), value={"maxRestarts": 0})
    for job in jobs:
        yield _Change(path=(*job, "backoffLimit"), value=0)
    for path in {("spec",), *jobs}:
        for limit in ("activeDeadlineSeconds", "ttlSecondsAfterFinished"):
            if _at(found, (*path, limit)) is not None:
                yield _Change(path=(*path, limit), value=_GONE)


def _debugged(path: Path, container: Mapping[str, Any], arming: Arming) -> Iterator[_Change]:
    """Yield a container whose command is the workload of a runbook."""
    command = _own_command(container)
    if not command:
        raise BadInput(
            f"container {container['name']} has no command, and a runbook must start one",
            next_step="write its command into FILE, as in command: [vllm, serve]",
        )
    if arming.image:
        yield _Change(path=(*path, "image"), value=arming.image)
    message = str(container.get("terminationMessagePath") or _MESSAGE)
    start = debugged_start(_FOLDER, arming.runbook, arming.inputs, message=message)
    yield _Change(path=(*path, "command"), value=["/bin/sh", "-c", start, _START, *command])
    for probe in ("livenessProbe", "startupProbe"):  # a kubelet would end the container in the middle of a step
        if container.get(probe) is not None:
            yield _Change(path=(*path, probe), value=_GONE)
    yield from _mounted(path, container, arming)


def _own_command(container: Mapping[str, Any]) -> list[str]:
    """Return a container's command, without what an earlier patch put around it."""
    command = _words(container, "command")
    return command[4:] if _is_started(command) else command


def _is_started(command: list[str]) -> bool:
    return command[:2] == ["/bin/sh", "-c"] and command[3:4] == [_START]


def _is_armed(container: Mapping[str, Any], arming: Arming) -> bool:
    """Return whether a container has a patch in it: its command is started by one, or it has all that one adds."""
    if _is_started(_words(container, "command")):
        return True
    set_there = all(_has(container, "env", "name", name) for name in arming.variables)
    return set_there and _has(container, "volumeMounts", "mountPath", DUMPS)


def _words(container: Mapping[str, Any], name: str) -> list[str]:
    """Return `command` or `args`; raises BadInput for a text, which Kubernetes takes no more than we do."""
    words = container.get(name) or []
    if not isinstance(words, list):
        example = "[vllm, serve, MODEL]" if name == "command" else '[--port, "8000"]'
        raise BadInput(
            f"`{name}` of container {container['name']} is not a list",
            cause="Kubernetes wants one item for each word, and refuses such an object too",
            next_step=f"write it as in {name}: {example}",
        )
    return list(map(str, words))


def _mounted(path: Path, container: Mapping[str, Any], arming: Arming) -> Iterator[_Change]:
    if not _has(container, "volumeMounts", "mountPath", DUMPS):
        yield _Change(path=(*path, "volumeMounts", "-"), value={"name": arming.volume, "mountPath": DUMPS})


def _free_volume(pod: Mapping[str, Any]) -> str:
    """Return a name for the volume of dumps: an emptyDir that is called so is the pod's own, and ends with it."""
    own = {one.get("name") for one in pod.get("volumes") or () if isinstance(one, dict) and "emptyDir" in one}
    return next((name for name in _VOLUMES if name not in own), _VOLUMES[0])


def _may_not_write(pod: dict[str, Any], container: dict[str, Any]) -> bool:
    """Return whether a container has another user than root, and its pod no group that a claim is given to."""
    of_pod, own = _mapping(pod, "securityContext"), _mapping(container, "securityContext")
    rights = {**of_pod, **own}
    return bool(rights.get("runAsNonRoot") or rights.get("runAsUser")) and of_pod.get("fsGroup") is None


def _of_container(path: Path, container: Mapping[str, Any], arming: Arming, notes: list[str]) -> Iterator[_Change]:
    command = _own_command(container)
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
        start = armed_start(_FOLDER, {name: _here(value) for name, value in arming.variables.items()})
        yield _Change(path=(*path, "command"), value=["/bin/sh", "-c", start, _START, *command])
    else:
        notes.append(
            f"Container {container['name']} has no command in FILE: only core dumps are on; add `command:` for guard."
        )
        for name, value in arming.variables.items():
            if not _has(container, "env", "name", name):
                yield _Change(path=(*path, "env", "-"), value={"name": name, "value": value})
    yield from _mounted(path, container, arming)


def _here(value: str) -> str:
    return value.replace(DUMPS, "$here", 1) if value.startswith(DUMPS) else value


def _has(holder: Mapping[str, Any], field: str, key: str, value: str) -> bool:
    return any(isinstance(one, dict) and one.get(key) == value for one in holder.get(field) or ())


# -- how it is written -------------------------------------------------------------------------------------------------


def _json_patch(found: Mapping[str, Any], changes: Sequence[_Change]) -> list[dict[str, Any]]:
    """Return the changes by RFC 6902: lists are extended, and each container is named before it is changed."""
    operations: list[dict[str, Any]] = []
    made: set[Path] = set()
    for change in changes:
        operations += _same_container(found, change, made)
        path, value = change.path, change.value
        if value is _GONE:
            operations.append({"op": "remove", "path": _pointer(path)})
            continue
        if path[-1] == "-" and path[:-1] not in made and not _at(found, path[:-1]):
            path, value = path[:-1], [value]
        made.add(change.path[:-1])
        operations.append({"op": "add", "path": _pointer(path), "value": value})
    return operations


def _json_undo(found: Mapping[str, Any], changes: Sequence[_Change]) -> list[dict[str, Any]]:
    """Return what brings back each value, the last change first; what was added is named before it is removed."""
    operations: list[dict[str, Any]] = []
    made: set[Path] = set()
    added: dict[Path, int] = {}
    for change in changes:
        path, here = change.path, _same_container(found, change, made)
        before = _at(found, path) if path[-1] != "-" else None
        if path[-1] == "-":
            place = (*path[:-1], len(_at(found, path[:-1]) or ()) + added.setdefault(path[:-1], 0))
            added[path[:-1]] += 1
            there = [{"op": "test", "path": _pointer((*place, "name")), "value": change.value["name"]}]
            gone = place if _at(found, path[:-1]) or place[-1] else path[:-1]
            here += [*there, {"op": "remove", "path": _pointer(gone)}]
        elif before is None:
            here.append({"op": "remove", "path": _pointer(path)})
        else:
            here.append({"op": "add", "path": _pointer(path), "value": before})
        operations = [*here, *operations]
    return operations


def _same_container(found: Mapping[str, Any], change: _Change, made: set[Path]) -> list[dict[str, Any]]:
    """Return the test that a container is the one of FILE; once for each."""
    if "containers" not in change.path:
        return []
    container = change.path[: change.path.index("containers") + 2]
    if container in made:
        return []
    made.add(container)
    return [{"op": "test", "path": _pointer((*container, "name")), "value": _at(found, container)["name"]}]


def _strategic(found: Mapping[str, Any], changes: Sequence[_Change]) -> dict[str, Any]:
    """Return the changes as kubectl merges them: containers, variables and volumes by their names."""
    return _merged(found, ((c.path, None if c.value is _GONE else c.value) for c in changes))


def _strategic_undo(found: Mapping[str, Any], changes: Sequence[_Change]) -> dict[str, Any]:
    """Return what brings back each value; of lists, what was added is removed by its name."""

    def before(change: _Change) -> Any:
        if change.path[-1] != "-":
            return _at(found, change.path)
        key = "mountPath" if change.path[-2] == "volumeMounts" else "name"
        return {"$patch": "delete", key: change.value[key]}

    return _merged(found, ((change.path, before(change)) for change in changes))


def _merged(found: Mapping[str, Any], values: Iterator[tuple[Path, Any]]) -> dict[str, Any]:
    # A kustomization takes the name of the object from the patch, whatever its target says.
    place = {key: found["metadata"][key] for key in ("name", "namespace") if key in found["metadata"]}
    patch: dict[str, Any] = {key: found[key] for key in ("apiVersion", "kind") if key in found} | {"metadata": place}
    for path, value in values:
        at: Any = patch
        for index, key in enumerate(path[:-1]):
            follows = path[index + 1]
            if isinstance(key, int):
                continue
            at = at.setdefault(key, [] if isinstance(follows, int) or follows == "-" else {})
            if isinstance(follows, int):
                at = _named(at, _at(found, path[: index + 2])["name"])
        if path[-1] == "-":
            at.append(value)
        else:
            at[path[-1]] = value
    return patch


def _changed(found: Mapping[str, Any], changes: Sequence[_Change]) -> dict[str, Any]:
    """Return the object with the changes in it."""
    result: dict[str, Any] = copy.deepcopy(dict(found))
    for change in changes:
        at: Any = result
        for key, follows in zip(change.path[:-1], change.path[1:], strict=True):
            if not isinstance(key, int) and at.get(key) is None:
                at[key] = [] if follows == "-" else {}
            at = at[key]
        last = change.path[-1]
        if last == "-":
            at.append(change.value)
        elif change.value is _GONE:
            del at[last]
        else:
            at[last] = change.value
    return result


def _made_again(found: dict[str, Any]) -> dict[str, Any]:
    """Return an object without what the cluster has added, as one that is made anew must be."""
    found.pop("status", None)
    metadata = {name: value for name, value in found["metadata"].items() if name not in _ADDED}
    notes = {name: value for name, value in (metadata.pop("annotations", None) or {}).items() if name != _APPLIED}
    found["metadata"] = {**metadata, **({"annotations": notes} if notes else {})}
    if found["kind"] == "Job" and not found["spec"].get("manualSelector"):
        found["spec"].pop("selector", None)
        for holder in (found["metadata"], found["spec"]["template"].get("metadata") or {}):
            for label in _JOB_LABELS:
                (holder.get("labels") or {}).pop(label, None)
    return found


def _named(containers: list[dict[str, Any]], name: str) -> dict[str, Any]:
    for one in containers:
        if one["name"] == name:
            return one
    containers.append({"name": name})
    return containers[-1]


def _at(found: Mapping[str, Any], path: Path) -> Any:
    at: Any = found
    for key in path:
        if isinstance(key, int):
            at = at[key] if isinstance(at, list) and key < len(at) else None
        else:
            at = at.get(key) if isinstance(at, dict) else None
    return at


def _pointer(path: Path) -> str:
    return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in path)


def _apply(found: Mapping[str, Any], kind: Kind, file: str) -> str:
    """Return the command that applies a patch; of what cannot be changed, the object is deleted and made again."""
    namespace = found["metadata"].get("namespace")
    where = f" --namespace {shlex.quote(str(namespace))}" if namespace else ""
    if found["kind"] not in _FIXED:
        named = f"{found['kind'].lower()} {shlex.quote(_name(found))}"
        return f"kubectl patch {named}{where} --type {kind} --patch-file {file}"
    if file == PATCH:
        return f"kubectl replace --force{where} --filename {OBJECT}"
    local = f"kubectl patch --local --filename {OBJECT} --type {kind} --patch-file {file} --output yaml"
    return f"{local} | kubectl replace --force{where} --filename -"
