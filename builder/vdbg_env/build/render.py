"""Render a plan into a folder that other tools build and run from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gpucore.arming import arming
from vdbg_env.common.errors import BadInput, quoted, unreadable
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.engine.trees import replace_folder
from vdbg_env.image.context import ROOT, BuildContext, FileBytes
from vdbg_env.image.manifests import KUBELET_SECCOMP, LOCALHOST_PROFILE, apptainer, batch_script, compose, kubernetes
from vdbg_env.image.plan import BuildPlan, build_context
from vdbg_env.image.profile import Dialect
from vdbg_env.image.settings import DUMPS, SECCOMP_FILE, DumpVolume, RunSettings

Format = Literal["dockerfile", "compose", "k8s", "apptainer", "slurm"]
MARK = "plan.json"  # in every folder rendered here: only such a folder is ever replaced
_OURS = b'"vdbg-env/plan/v1"'
_OUR_PATCH = b"# Rendered by vdbg-env."


@dataclass(frozen=True, kw_only=True)
class Rendering:
    """What was written: the folder, its files in order of name, and the next thing to type.

    The digest is that of the plan; None where none was needed.
    """

    folder: Path
    files: tuple[str, ...]
    digest: str | None
    next_step: str


def render_json(rendering: Rendering) -> dict[str, Any]:
    """Return what was written as docs/schemas/render-v1.schema.json describes it."""
    return {
        "schema": "vdbg-env/render/v1",
        "folder": str(rendering.folder),
        "files": list(rendering.files),
        "plan_digest": rendering.digest,
        "next_step": rendering.next_step,
    }


def render(
    plan: BuildPlan,
    run: RunSettings,
    folder: Path,
    *,
    format: Format,
    dialect: Dialect,
    pulled: str | None = None,
) -> Rendering:
    """Write a plan into `folder`, all of it or nothing: it appears only when it is complete.

    An empty folder and one rendered earlier are replaced. `pulled` is an image that the nodes of a Slurm cluster can
    get; without it tasks run on what is installed there. Raises BadInput for any other folder that exists.
    """
    files = replace_folder(_context(plan, run, format, dialect, pulled), folder, MARK, _OURS)
    return Rendering(folder=folder, files=files, digest=plan.digest, next_step=_next_step(format, folder, run, plan))


def render_patch(
    text: str,
    name: str,
    folder: Path,
    *,
    image: str | None,
    dumps: DumpVolume,
    grace_s: int,
    runbook: str = "",
    inputs: Mapping[str, str] | None = None,
    without_requests: str | None = None,
) -> tuple[Rendering, tuple[str, ...]]:
    """Write the patch that arms the object in `text`, or has it run a runbook, and the one that takes it back.

    Returns what the patch does not do in addition.

    `without_requests` is why the runbook is not begun on a server with these inputs. The same holds for the folder as
    for `render`. Raises BadInput for a file without an object to arm, for a run that the pod would not begin, and where
    the folder has an undo that differs, which may be the only way back.
    """
    from vdbg_env.image.patch import OBJECT, PATCH, UNDO, Arming, arming_patch  # these two are for an object alone
    from vdbg_env.runbook.workload import recognise

    wanted = Arming(
        variables=arming(DUMPS), dumps=dumps, grace_s=grace_s, image=image, runbook=runbook, inputs=inputs or {}
    )
    patch = arming_patch(text, name, wanted)
    if without_requests and any(recognise(argv).command == "serve" for argv in patch.workloads):
        raise BadInput(
            without_requests,
            cause="the pod runs the runbook with --batch: it would end at once, and the server would be down",
            next_step="add -i request=synthetic, or -i request=FILE with a file that the container has",
        )
    items = (_file(PATCH, patch.text), _file(UNDO, patch.undo), _file(OBJECT, patch.object))
    _keep_undo(folder / UNDO, patch.undo)
    files = replace_folder(BuildContext(items=items), folder, PATCH, _OUR_PATCH)
    step = patch.apply.replace(PATCH, quoted(folder / PATCH)).replace(OBJECT, quoted(folder / OBJECT))
    return Rendering(folder=folder, files=files, digest=None, next_step=step), patch.notes


def _keep_undo(path: Path, new: str) -> None:
    """Raise BadInput where another undo would be lost: its patch may be applied, and then it is the only way back."""
    try:
        before = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise unreadable(path, error) from None
    if before != new.encode():
        raise BadInput(
            f"{path} differs from the undo of this render and would be lost",
            cause="other options or another FILE; if its patch is applied, only that undo brings back what was before",
            next_step=f"name another folder; if its patch is not applied, rm {quoted(path)}",
        )


def _context(plan: BuildPlan, run: RunSettings, format: Format, dialect: Dialect, pulled: str | None) -> BuildContext:
    mark = FileBytes(name=MARK, data=json.dumps(plan.document(), indent=2, sort_keys=True).encode() + b"\n")
    seccomp = FileBytes(name=SECCOMP_FILE, data=(SHIPPED_DATA / "templates" / SECCOMP_FILE).read_bytes())
    match format:
        case "dockerfile":
            return build_context(plan, dialect, mark)
        case "compose":
            return build_context(plan, dialect, mark, seccomp, _file("compose.yaml", compose(run, build=".")))
        case "k8s":
            return BuildContext(items=(mark, seccomp, _file("pod.yaml", kubernetes(run))))
        case "apptainer":
            return BuildContext(items=(*plan.context, mark, _file("apptainer.def", apptainer(plan))))
        case "slurm":
            script = batch_script(run, arming(DUMPS), image=pulled)
            return BuildContext(items=(mark, FileBytes(name="job.sh", data=script.encode(), mode=0o755)))


def _file(name: str, text: str) -> FileBytes:
    return FileBytes(name=name, data=text.encode())


def _next_step(format: Format, folder: Path, run: RunSettings, plan: BuildPlan) -> str:
    """Return what to type next; what is built without `vdbg-env build` is not proven, so the proof is part of it."""
    proof = " ".join(f"{run.image}:{ROOT}/{artifact}" for artifact in plan.artifacts)
    here = quoted(folder)
    match format:
        case "dockerfile":
            option = "" if plan.network == "default" else f"--network {plan.network} "
            return f"docker build {option}--tag {run.image} {here} && vdbg-env verify {proof}"
        case "compose":
            compose = f"docker compose --project-directory {here}"
            return f"{compose} build && vdbg-env verify {proof} && {compose} run --rm debug"
        case "k8s":
            apply = f"kubectl apply --filename {quoted(folder / 'pod.yaml')}"
            if run.seccomp != "ptrace":
                return apply
            profile = f"{KUBELET_SECCOMP}/{LOCALHOST_PROFILE}"
            return f"on every node: install -D -m 644 {quoted(folder / SECCOMP_FILE)} {profile}; then {apply}"
        case "apptainer":
            return f"cd {here} && apptainer build debug.sif apptainer.def (not proven: vdbg-env build proves)"
        case "slurm":
            return f"sbatch --nodes=1 {quoted(folder / 'job.sh')} COMMAND..."
