"""The start of a production command that is armed: under `vdbg-env guard`, or with the driver's variables alone."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

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


def armed_start(folder: str, variables: Mapping[str, str]) -> str:
    """Return a program of /bin/sh that becomes its arguments, armed; `folder` is what sh has in double quotes.

    Where vdbg-env is not installed, the command still starts: a patch must not keep a production server down. The
    `variables` are set then alone, as guard leaves what is set already. `$here` in them is the folder.
    """
    exports = "".join(f"export {name}={_quoted(value)}\n" for name, value in variables.items())
    return _GUARDED.format(folder=folder, exports=exports)


def _quoted(value: str) -> str:
    head, here, tail = value.partition("$here")
    return f'"$here"{shlex.quote(tail)}' if here and not head else shlex.quote(value)
