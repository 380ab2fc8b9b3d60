"""The environment that makes the CUDA driver write a core dump on an exception and on request.

Source: cuda-gdb manual, "GPU core dump support". The variables are read when CUDA starts in a process, so they must be
set before, in every process; a name without `%p` would make processes overwrite each other's dumps.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from vdbg_env.common.errors import BadInput

_LONGEST = 1023
_LIGHT = (
    "skip_nonrelocated_elf_images", "skip_global_memory", "skip_shared_memory", "skip_local_memory",
    "skip_constbank_memory",
)  # fmt: skip
_FULL = ("skip_nonrelocated_elf_images",)  # the relocated images have all that the others have


def arming(folder: str, *, pipe_folder: str = "/tmp", full: bool = False) -> Mapping[str, str]:
    """Return the variables; `full` keeps all memory in the dump, which then is as large as what the GPU holds.

    Raises BadInput when a folder cannot stand in the driver's templates.
    """
    for path in (folder, pipe_folder):
        _check(path)
    return {
        "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1",
        "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1",
        "CUDA_COREDUMP_SHOW_PROGRESS": "1",
        "CUDA_COREDUMP_GENERATION_FLAGS": ",".join(_FULL if full else _LIGHT),
        "CUDA_COREDUMP_FILE": f"{folder.rstrip('/')}/core.%h.%p.%t.nvcudmp",
        # Named in full: drivers differ in the default. On a local disk: FIFOs do not work over some network ones.
        "CUDA_COREDUMP_PIPE": f"{pipe_folder.rstrip('/')}/corepipe.cuda.%h.%p",
    }


def as_exports(variables: Mapping[str, str]) -> str:
    """Return the variables as lines for `eval` in a shell."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())


def as_env_file(variables: Mapping[str, str]) -> str:
    """Return the variables as `docker run --env-file` and systemd read them: nothing quoted."""
    return "".join(f"{name}={value}\n" for name, value in variables.items())


def _check(folder: str) -> None:
    if not folder.startswith("/"):
        raise BadInput(
            f"the folder must be absolute: {folder!r}",
            cause="the driver takes a relative one from each process's working directory",
        )
    if "%" in folder or "\n" in folder:
        raise BadInput(
            f"the folder may hold no % and no line end: {folder!r}", cause="the driver does not make folders"
        )
    if len(folder) + 64 > _LONGEST:
        raise BadInput(f"the folder's name is too long for the driver ({_LONGEST} characters in all)")
