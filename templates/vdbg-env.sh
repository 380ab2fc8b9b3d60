#!/bin/sh
# vdbg-env from its own virtual environment. -I: neither PYTHONPATH, nor the folder it starts in, nor the packages of
# the workload reach it; its own are on no path that the workload reads.
set -eu

# The dump volume outlives the container, and so do the records of its crashes.
if [ -z "${VDBG_ENV_RUNS:-}" ]; then
    if [ -d /dumps ] && [ -w /dumps ]; then
        export VDBG_ENV_RUNS=/dumps/vdbg-runs
    elif [ ! -w . ] && [ -n "${HOME:-}" ]; then
        export VDBG_ENV_RUNS="$HOME/vdbg-runs"
    fi
fi

python="${VDBG_ROOT:-/opt/vdbg}"/tool/bin/python3
if [ ! -x "$python" ] && [ "${1-} ${2-}" = "guard --" ]; then
    echo "vdbg-env guard: the command runs without its guard: $python is not there" >&2
    shift 2
    exec "$@"
fi
exec "$python" -I -m vdbg_env "$@"
