"""What cannot work on several ranks, or would not be what it seems."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vdbg_env.common.errors import Complaint
from vdbg_env.common.yaml_source import Path
from vdbg_env.runbook.model import Command, Run, Runbook, ServerDriver
from vdbg_env.runbook.parsing.locations import Places

_RANK = re.compile(r"\$\{\{\s*rank\.")
# Variables whose value is a file that each process of each rank writes.
_FILES = re.compile(
    r"CUDA_COREDUMP_(?:FILE|PIPE)|NCCL_DEBUG_FILE|TORCH_NCCL_DEBUG_INFO_(?:TEMP_FILE|PIPE_FILE)"
    r"|CU(?:BLAS|DNN)_LOGDEST_DBG|CUBLASLT_LOG_FILE|LOG_FILE"
)
# Options of the programs that a command is wrapped in: compute-sanitizer, nsys and ncu, valgrind, strace, gdb.
_OPTION = re.compile(r"(?P<name>--(?:log-file|save|output|export|xml-file)|-o)(?:=(?P<value>.+))?")


def rank_complaints(runbook: Runbook, places: Places) -> Iterator[Complaint]:
    """Yield what is wrong with commands and steps that the runbook itself puts on several ranks."""
    for name, command in runbook.commands.items():
        path: Path = ("spec", "commands", name)
        if command.driver:
            yield from _driver(command.driver, (*path, "driver"), places)
        if command.placement.ranks > 1:
            yield from _environment(command.env, path, places)
    for index, step in enumerate(runbook.steps):
        if isinstance(step, Run) and _ranks(step, runbook.commands.get(step.command)) > 1:
            yield from _environment(step.env, ("spec", "steps", index), places)
            yield from _wrap(step.argv.wrap, ("spec", "steps", index), places)


def _ranks(step: Run, command: Command | None) -> int:
    own = step.placement.ranks if step.placement else 1
    return max(own, command.placement.ranks if command else 1)


def _driver(driver: ServerDriver, path: Path, places: Places) -> Iterator[Complaint]:
    for inner, text in ((("replay",), driver.replay), (("ready", "http"), driver.ready.http)):
        if _RANK.search(text):
            what = "requests are sent at the first rank only, so `rank.*` has no value here"
            yield places.complaint((*path, *inner), what)


def _environment(env: object, path: Path, places: Places) -> Iterator[Complaint]:
    for name, text in dict(env).items():  # type: ignore[call-overload]
        if _FILES.fullmatch(name) and isinstance(text, str) and _is_shared(text):
            yield places.complaint((*path, "env", name), f"all ranks would write {text!r}: use ${{{{ rank.dir }}}}")


def _wrap(words: tuple[str, ...], path: Path, places: Places) -> Iterator[Complaint]:
    for number, word in enumerate(words):
        found = _OPTION.fullmatch(word)
        if not found:
            continue
        value = found["value"] or (words[number + 1] if number + 1 < len(words) else "")
        if value and _is_shared(value):
            what = f"each rank is wrapped by itself, and all would write {value!r}: use ${{{{ rank.dir }}}}"
            yield places.complaint((*path, "argv", "wrap", number), what)


def _is_shared(text: str) -> bool:
    return not _RANK.search(text) and not text.startswith("/dev/") and text not in {"stdout", "stderr", "-"}
