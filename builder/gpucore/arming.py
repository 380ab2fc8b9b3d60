"""The environment that makes the CUDA driver write a core dump on an exception and on request.

Source: cuda-gdb manual, "GPU core dump support". The variables are read when CUDA starts in a process, so they must be
set before, in every process; a name without `%p` would make processes overwrite each other's dumps.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Literal, get_args

from gpucore.errors import BadArgument

_LONGEST = 1023
CoreSize = Literal["light", "default", "full"]
"""How much of the memory of a GPU a core keeps: none; shared and local memory; all."""
CORE_SIZES: tuple[CoreSize, ...] = get_args(CoreSize)
GENERATION_FLAGS: Mapping[CoreSize, tuple[str, ...]] = {
    "light": (
        "skip_nonrelocated_elf_images", "skip_global_memory", "skip_shared_memory", "skip_local_memory",
        "skip_constbank_memory",
    ),
    # What explains a bad address is kept: shared memory and spilled registers; parameters have another section. Where
    # constant banks are kept without global memory, driver 580 stops at bank 4, which it cannot read, and the core ends
    # there without a word: every kernel of a module with printf, assert or a __device__ variable has that bank.
    "default": ("skip_nonrelocated_elf_images", "skip_global_memory", "skip_constbank_memory"),
    "full": ("skip_nonrelocated_elf_images",),  # the relocated images have all that the others have
}  # fmt: skip


def arming(folder: str, *, pipe_folder: str = "/tmp", size: CoreSize = "default") -> Mapping[str, str]:
    """Return the variables; a `full` dump is as large as what the GPU holds.

    Raises BadArgument when a folder cannot be in the driver's templates.
    """
    for path in (folder, pipe_folder):
        _check(path)
    return {
        "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1",
        "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1",
        "CUDA_COREDUMP_SHOW_PROGRESS": "1",
        "CUDA_COREDUMP_GENERATION_FLAGS": ",".join(GENERATION_FLAGS[size]),
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
        raise BadArgument(
            f"the folder must be absolute: {folder!r}",
            cause="the driver takes a relative one from each process's working directory",
        )
    if "%" in folder or "\n" in folder:
        raise BadArgument(
            f"the folder may hold no % and no line end: {folder!r}", cause="the driver does not make folders"
        )
    if len(folder) + 64 > _LONGEST:
        raise BadArgument(f"the folder's name is too long for the driver ({_LONGEST} characters in all)")
