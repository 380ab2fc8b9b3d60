#!/bin/bash
# Rendered by vdbg-env: starts a command on every task, under `vdbg-env guard` where that is installed.
#   sbatch --nodes=2 --gpus-per-node=8 job.sh python train.py --rank '$SLURM_PROCID'
# A word of the command that is a variable of Slurm gets the value that it has in each task.
# `vdbg-env runbook NAME --on slurm --submit` queues a runbook, and gives vLLM its words for several nodes.
#SBATCH --job-name=vdbg-debug
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --no-requeue
#SBATCH --no-kill
set -eu
[ $# -gt 0 ] || { echo "usage: sbatch $0 COMMAND..." >&2; exit 2; }
mkdir -p "$SLURM_SUBMIT_DIR/vdbg-dumps"
start=$(cat <<'END'
for word do shift; case $word in '$SLURM_'*) word=$(printenv "${word#?}") ;; esac; set -- "$@" "$word"; done
ulimit -S -c unlimited 2>/dev/null || :
here="$SLURM_SUBMIT_DIR/vdbg-dumps/${SLURM_JOB_ID}-${SLURM_PROCID}"
mkdir -p "$here" 2>/dev/null || echo "vdbg-env: $here cannot be made: dumps are lost" >&2
if command -v vdbg-env >/dev/null 2>&1; then
    exec vdbg-env guard --runs "$here/runs" -- "$@"
fi
echo "vdbg-env: it is not installed here (vdbg-env build --onto IMAGE --guard adds it): armed, but not guarded" >&2
read -r pattern 2>/dev/null </proc/sys/kernel/core_pattern || pattern=unknown
echo "vdbg-env: GPU cores go to $here; the kernel writes those of processes by core_pattern: $pattern" >&2
export CUDA_ENABLE_COREDUMP_ON_EXCEPTION=1
export CUDA_ENABLE_USER_TRIGGERED_COREDUMP=1
export CUDA_COREDUMP_SHOW_PROGRESS=1
export CUDA_COREDUMP_GENERATION_FLAGS=skip_nonrelocated_elf_images,skip_global_memory,skip_constbank_memory
export CUDA_COREDUMP_FILE="$here"/core.%h.%p.%t.nvcudmp
export CUDA_COREDUMP_PIPE=/tmp/corepipe.cuda.%h.%p
exec "$@"
END
)
exec srun --kill-on-bad-exit=0 --wait=0 --no-kill --export=ALL /bin/sh -c "$start" vdbg-env "$@"
