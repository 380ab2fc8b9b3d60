"""The start of a command in a pod or a task: under `vdbg-env guard`, armed alone, or as the workload of a runbook."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from vdbg_env.image.plan.plan import ROOT

_GUARDED = """\
ulimit -S -c unlimited 2>/dev/null || :
here="{folder}"
mkdir -p "$here" 2>/dev/null || echo "vdbg-env: $here cannot be made: dumps are lost" >&2
if command -v vdbg-env >/dev/null 2>&1; then
    exec vdbg-env guard --runs "$here/runs" -- "$@"
fi
echo "vdbg-env: it is not installed here (pip install vdbg-env): armed, but not guarded; dumps in $here" >&2
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
command -v vdbg-env >/dev/null 2>&1 || problem="this image has no vdbg-env: pip install vdbg-env, or --image"
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
