"""Run settings as a Compose file, a Kubernetes manifest and a batch script of Slurm; a plan for Apptainer."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vdbg_env.common.console import one_line, printable
from vdbg_env.common.errors import BadInput
from vdbg_env.image.context import ROOT
from vdbg_env.image.plan import LABEL_DIGEST, BuildPlan, CommandStep, CopyStep, shell_word
from vdbg_env.image.settings import DUMPS, GIB, SECCOMP_FILE, UNLIMITED, DumpVolume, Gpu, RunSettings

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
    # A line break within a note, a name's for one, would begin a line of the document.
    return "".join(f"# {printable(note)}\n" for note in notes) + body


# A plan as an Apptainer definition file: the same steps, the same environment, one %post.


def apptainer(plan: BuildPlan) -> str:
    """Return the definition file of a plan, to be built in the folder that holds its context.

    Raises BadInput when the plan reads secrets, which a definition file has no way to keep out of the image.
    """
    if any(step.secrets for step in plan.steps if isinstance(step, CommandStep)):
        raise BadInput(
            "an Apptainer definition has no build secrets",
            next_step="build an image with `vdbg-env build --output image.tar` and convert it: "
            "apptainer build image.sif docker-archive:image.tar",
        )
    if any(step.objects for step in plan.steps if isinstance(step, CommandStep)):
        raise BadInput(
            "an Apptainer definition keeps no compiled objects between builds", next_step="leave --object-cache out"
        )
    sections = [
        f"# Rendered by vdbg-env from the profile {plan.profile}.\n"
        "# Build it with: apptainer build IMAGE.sif DIR/apptainer.def, in DIR.\n"
        "# Run it with: apptainer run --nv --bind DUMPS:/dumps IMAGE.sif",
        f"Bootstrap: docker\nFrom: {one_line(plan.base, 'the base image')}",
        _files(plan),
        _post(plan),
        _environment(plan),
        _labels(plan),
        f'%runscript\n    exec {" ".join(plan.entrypoint)} "${{@:-{" ".join(plan.command)}}}"',
    ]
    return "\n\n".join(sections) + "\n"


def _files(plan: BuildPlan) -> str:
    copies = [s for s in plan.steps if isinstance(s, CopyStep)]
    return "\n".join(["%files", *(f"    {s.source} {ROOT}/{s.target}" for s in copies)])


def _post(plan: BuildPlan) -> str:
    lines = ["%post -c /bin/sh", "    set -eu"]
    lines += [f'    export {arg.name}="${{{arg.name}:-{arg.default}}}"  # {arg.why}' for arg in plan.args]
    lines += _exports(plan)
    for step in plan.steps:
        if isinstance(step, CopyStep):
            continue
        folder = ROOT if step.cwd == "." else f"{ROOT}/{step.cwd}"
        lines += ["", f"    # {one_line(step.title, 'a title')}", f"    mkdir -p {folder}", "    (", f"    cd {folder}"]
        lines += [f"    export {variable.name}={shell_word(variable)}" for variable in step.env]
        lines += [f"    {_verbatim(command)}" for command in step.commands]
        lines.append("    )")
    return "\n".join(lines)


def _environment(plan: BuildPlan) -> str:
    return "\n".join(["%environment", *_exports(plan)])


def _exports(plan: BuildPlan) -> list[str]:
    return [f"    export {name}={_verbatim(shlex.quote(value))}" for name, value in plan.environment().items()]


def _labels(plan: BuildPlan) -> str:
    pairs = [*plan.labels, (LABEL_DIGEST, plan.digest)]
    lines = [f"    {name} {_verbatim(one_line(value, name))}" for name, value in pairs]
    return "\n".join(["%labels", *lines])


def _verbatim(text: str) -> str:
    """Keep Apptainer (1.2 on) from taking `{{ name }}` for an argument: within single quotes, '' adds nothing."""
    return re.sub(r"\{(?=\{)", "{''", text)


# The start of a command in a pod or a task: under `vdbg-env guard`, armed alone, or as the workload of a runbook.


_GUARDED = """\
ulimit -S -c unlimited 2>/dev/null || :
here="{folder}"
mkdir -p "$here" 2>/dev/null || echo "vdbg-env: $here cannot be made: dumps are lost" >&2
if command -v vdbg-env >/dev/null 2>&1; then
    exec vdbg-env guard --runs "$here/runs" -- "$@"
fi
echo "vdbg-env: it is not installed here (vdbg-env build --onto IMAGE --guard adds it): armed, but not guarded" >&2
read -r pattern 2>/dev/null </proc/sys/kernel/core_pattern || pattern=unknown
echo "vdbg-env: GPU cores go to $here; the kernel writes those of processes by core_pattern: $pattern" >&2
{exports}exec "$@"
"""

_DEBUGGED = """\
ulimit -S -c unlimited 2>/dev/null || :
if [ "${{LWS_WORKER_INDEX:-0}}" != 0 ]; then exec "$@"; fi
here="{folder}"
run="$here/{runbook}"
said={message}
if [ -e "$run.ended" ]; then
    trap 'kill "$!" 2>/dev/null; exit 0' TERM INT
    echo "vdbg-env: the runbook has ended, its record is $run; undo.yaml brings the command back" >&2
    tail -f /dev/null &
    wait
fi
PATH="$PATH:{root}"
problem=
mkdir -p "$here" || problem="$here cannot be made: is the volume mounted, and may this user write to it?"
command -v vdbg-env >/dev/null 2>&1 || problem="this image has no vdbg-env: vdbg-env build --onto IMAGE --guard adds it"
if [ -n "$problem" ]; then
    echo "vdbg-env: $problem" | tee "$said" >&2
    exit 127
fi
trap 'kill -TERM "$child"' TERM INT
if [ -e "$run/run.json" ]; then
    vdbg-env runbook --batch --resume "$run" &
else
    vdbg-env runbook {runbook} --batch --run-dir "$run" {inputs}-- "$@" &
fi
child=$!
wait "$child"; status=$?
while kill -0 "$child" 2>/dev/null; do wait "$child"; status=$?; done
if [ -e "$run/run.json" ]; then
    vdbg-env runs show "$run" 2>&1 | head -c 4000 >"$said"
else
    echo "vdbg-env: the runbook could not begin (status $status): the reason is in the log of this container" >"$said"
fi
case "$status" in 0|3|4|124|125) : >"$run.ended" ;; esac
exit "$status"
"""


def armed_start(folder: str, variables: Mapping[str, str]) -> str:
    """Return a program of /bin/sh that becomes its arguments, armed; `folder` is what sh has in double quotes.

    Where vdbg-env is not installed, the command still starts: a patch must not keep a production server down. The
    `variables` are set then alone, as guard leaves what is set already. `$here` in them is the folder.
    """
    exports = "".join(f"export {name}={_quoted(value)}\n" for name, value in variables.items())
    return _GUARDED.format(folder=folder, exports=exports)


def debugged_start(folder: str, runbook: str, inputs: Mapping[str, str], *, message: str) -> str:
    """Return a program of /bin/sh that runs a runbook once, with its arguments as the workload.

    What the run found is written to `message`, which Kubernetes keeps. A run that was cut short is resumed by the next
    start of the container; after one that has ended, the container stays and starts nothing. Of a group only the
    leader runs it. `folder` is what sh has in double quotes.
    """
    given = "".join(f"--input {shlex.quote(f'{name}={value}')} " for name, value in inputs.items())
    return _DEBUGGED.format(
        folder=folder, runbook=shlex.quote(runbook), inputs=given, message=shlex.quote(message), root=ROOT
    )


def _quoted(value: str) -> str:
    head, here, tail = value.partition("$here")
    return f'"$here"{shlex.quote(tail)}' if here and not head else shlex.quote(value)


# A batch script of Slurm that starts a command armed on every task; the command is given to sbatch.


_RANK = "${SLURM_JOB_ID}-${SLURM_PROCID}"


def batch_script(settings: RunSettings, variables: Mapping[str, str], *, image: str | None) -> str:
    """Return the script; with an `image` its tasks run in containers by pyxis.

    A site may end all tasks with the first one that fails, or start the job again in the same folders: both lose what
    the first failure left.
    """
    outside = _dumps(settings)
    folder = DUMPS if image else outside
    start = armed_start(
        f"{folder}/{_RANK}", {name: value.replace(DUMPS, "$here", 1) for name, value in variables.items()}
    )
    srun = [
        "srun --kill-on-bad-exit=0 --wait=0 --no-kill --export=ALL",
        *([f'--container-image={shlex.quote(image)} "--container-mounts={outside}:{DUMPS}"'] if image else []),
    ]
    return f"""#!/bin/bash
# Rendered by vdbg-env: starts a command on every task, under `vdbg-env guard` where that is installed.
#   sbatch --nodes=2 --gpus-per-node=8 job.sh python train.py --rank '$SLURM_PROCID'
# A word of the command that is a variable of Slurm gets the value that it has in each task.
# `vdbg-env runbook NAME --on slurm --submit` queues a runbook, and gives vLLM its words for several nodes.
#SBATCH --job-name=vdbg-debug
#SBATCH --ntasks-per-node=1
{_gpus(settings.gpu)}#SBATCH --no-requeue
#SBATCH --no-kill
set -eu
[ $# -gt 0 ] || {{ echo "usage: sbatch $0 COMMAND..." >&2; exit 2; }}
mkdir -p "{outside}"
start=$(cat <<'END'
for word do shift; case $word in '$SLURM_'*) word=$(printenv "${{word#?}}") ;; esac; set -- "$@" "$word"; done
{start}END
)
exec {" ".join(srun)} /bin/sh -c "$start" vdbg-env "$@"
"""


def _dumps(settings: RunSettings) -> str:
    """Return the folder of dumps as a word in double quotes."""
    if settings.dumps is None:
        return "$SLURM_SUBMIT_DIR"
    if settings.dumps.kind == "bind":
        return "".join(f"\\{letter}" if letter in '"$`\\' else letter for letter in settings.dumps.source)
    return f"$SLURM_SUBMIT_DIR/{settings.dumps.source}"


def _gpus(gpu: Gpu) -> str:
    if gpu.by == "none":
        return ""
    count = int(gpu.devices[0]) if len(gpu.devices) == 1 and gpu.devices[0].isdigit() else len(gpu.devices)
    return f"#SBATCH --gpus-per-node={max(1, count)}\n"
