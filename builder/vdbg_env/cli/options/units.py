"""The options of `lines build` and `build --onto` that say what units are compiled with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from vdbg_env.common.errors import BadInput

Function = TypeVar("Function", bound=Callable[..., Any])
_VARIABLES: Final = {"cutlass": "VLLM_CUTLASS_SRC_DIR", "flash-attn": "VLLM_FLASH_ATTN_SRC_DIR"}


def compiler_option(article: str = "An") -> Callable[[Function], Function]:
    """Add --compiler, whose value is the parameter `toolkit`, to a command; its help begins with `article`."""
    return click.option(
        "--compiler",
        "toolkit",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="DIR",
        help=f"{article} installed CUDA toolkit instead of packages, as vLLM of CUDA 12 needs.",
    )


def local_trees(texts: Iterable[str], flag: str) -> dict[str, str]:
    """Return the trees of other projects by CMake's variable; raises BadInput for one that is not VARIABLE=DIR."""
    return dict(_local_tree(text, flag) for text in texts)


def _local_tree(text: str, flag: str) -> tuple[str, str]:
    name, equals, folder = text.partition("=")
    variable = _VARIABLES.get(name, name)
    path = Path(folder).expanduser()
    if not equals or not variable.endswith("_SRC_DIR") or not path.is_dir():
        raise BadInput(
            f"{flag} {text}: not VARIABLE=DIR of a folder that exists",
            next_step=f"{flag} VLLM_CUTLASS_SRC_DIR=~/cutlass, the variable that vLLM's CMake reads",
        )
    return variable, str(path.resolve())
