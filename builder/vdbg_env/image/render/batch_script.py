"""A batch script of Slurm that starts a command armed on every task; the command is given to sbatch."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from vdbg_env.image.container.run_settings import DUMPS, Gpu, RunSettings
from vdbg_env.image.render.armed_start import armed_start

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
#   sbatch --nodes=2 job.sh python train.py --rank '$SLURM_PROCID'
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
