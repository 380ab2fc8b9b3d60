"""Render a plan into a folder that other tools build and run from."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Literal

from vdbg_env.common.resources import data_dir
from vdbg_env.image.container.run_settings import SECCOMP_FILE, RunSettings
from vdbg_env.image.context import BuildContext, FileBytes
from vdbg_env.image.plan.plan import ROOT, BuildPlan
from vdbg_env.image.profile.request import Dialect
from vdbg_env.image.render.apptainer import apptainer
from vdbg_env.image.render.dockerfile import build_context
from vdbg_env.image.render.manifests import KUBELET_SECCOMP, LOCALHOST_PROFILE, compose, kubernetes

Format = Literal["dockerfile", "compose", "k8s", "apptainer"]
LayOut = Callable[[BuildContext, PurePath, str, bytes], tuple[str, ...]]
"""Writes a context as files into a folder, all of it or nothing, and returns their names in order.

An empty folder is replaced, and one whose file of this name holds these bytes. Raises BadInput for any other.
"""

MARK = "plan.json"  # in every folder rendered here: only such a folder is ever replaced
_OURS = b'"vdbg-env/plan/v1"'


@dataclass(frozen=True, kw_only=True)
class Rendering:
    """What was written: the folder, its files in order of name, and the next thing to type."""

    folder: Path
    files: tuple[str, ...]
    digest: str
    next_step: str


def render(
    plan: BuildPlan, run: RunSettings, folder: Path, *, format: Format, dialect: Dialect, lay_out: LayOut
) -> Rendering:
    """Write a plan into `folder`, all of it or nothing: it appears only when it is complete.

    An empty folder and one rendered earlier are replaced. Raises BadInput for any other that exists.
    """
    files = lay_out(_context(plan, run, format, dialect), folder, MARK, _OURS)
    return Rendering(folder=folder, files=files, digest=plan.digest, next_step=_next_step(format, folder, run, plan))


def _context(plan: BuildPlan, run: RunSettings, format: Format, dialect: Dialect) -> BuildContext:
    mark = FileBytes(name=MARK, data=json.dumps(plan.document(), indent=2, sort_keys=True).encode() + b"\n")
    seccomp = FileBytes(name=SECCOMP_FILE, data=(data_dir("templates") / SECCOMP_FILE).read_bytes())
    match format:
        case "dockerfile":
            return build_context(plan, dialect, mark)
        case "compose":
            return build_context(plan, dialect, mark, seccomp, _file("compose.yaml", compose(run, build=".")))
        case "k8s":
            return BuildContext(items=(mark, seccomp, _file("pod.yaml", kubernetes(run))))
        case "apptainer":
            return BuildContext(items=(*plan.context, mark, _file("apptainer.def", apptainer(plan))))


def _file(name: str, text: str) -> FileBytes:
    return FileBytes(name=name, data=text.encode())


def _next_step(format: Format, folder: Path, run: RunSettings, plan: BuildPlan) -> str:
    """Return what to type next; what is built without `vdbg-env build` is not proven, so the proof is part of it."""
    proof = " ".join(f"{run.image}:{ROOT}/{artifact}" for artifact in plan.artifacts)
    match format:
        case "dockerfile":
            option = "" if plan.network == "default" else f"--network {plan.network} "
            return f"docker build {option}--tag {run.image} {folder} && vdbg-env verify {proof}"
        case "compose":
            compose = f"docker compose --project-directory {folder}"
            return f"{compose} build && vdbg-env verify {proof} && {compose} run --rm debug"
        case "k8s":
            apply = f"kubectl apply --filename {folder}/pod.yaml"
            if run.seccomp != "ptrace":
                return apply
            profile = f"{KUBELET_SECCOMP}/{LOCALHOST_PROFILE}"
            return f"on every node: install -D -m 644 {folder}/{SECCOMP_FILE} {profile}; then {apply}"
        case "apptainer":
            return f"cd {folder} && apptainer build debug.sif apptainer.def (not proven: vdbg-env build proves)"
