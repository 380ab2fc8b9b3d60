"""Recognise what kind of command line a workload is: what flags and hooks can reach it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from typing import Literal

Kind = Literal["vllm", "python", "program"]

# Launchers that start the rest of their command line; their own flags are skipped up to the first known program.
_LAUNCHERS = {"env", "uv", "uvx", "poetry", "pixi", "conda", "numactl", "taskset", "nice", "stdbuf", "time", "timeout",
              "setsid", "nohup", "mpirun", "mpiexec", "srun", "nsys", "sudo"}  # fmt: skip
_PYTHON = re.compile(r"(python|pypy)([23](\.\d+)?)?t?")
_PYTHON_LAUNCHERS = {"torchrun", "accelerate", "deepspeed", "pytest", "ray"}
_CHOOSERS = {"uv", "uvx", "poetry", "pixi", "conda", "sudo"}  # whose Python is not the one on our PATH
_ENGINE_COMMANDS = {"serve", "bench", "run-batch", "launch"}
_VLLM_MODULES = ("vllm.entrypoints.",)
_SERVER_COMMANDS = {"serve", "launch"}
_SERVER_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server", "sglang.launch_server")
_HELP = {"-h", "--help"}
_BENCHES_OF_A_SERVER = {"serve"}  # `vllm bench serve` is a client: engine flags mean nothing to it


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A command line and its kind: `vllm` takes engine flags, `python` loads a plug-in, a program does neither.

    `command` is vLLM's subcommand or Python's module; `ranks` and `eager` are what vLLM's own flags ask for. `starter`
    is the word that starts Python, an interpreter or a script of one; None where a launcher chooses another Python.
    """

    kind: Kind
    argv: tuple[str, ...] = ()
    command: str | None = None
    ranks: int = 1
    eager: bool = False
    starter: str | None = None

    @property
    def python(self) -> bool:
        """Whether a Python interpreter runs it."""
        return self.kind != "program"

    @property
    def serves(self) -> bool:
        """Whether it is a server, which never ends by itself while it is well; one that prints its help is none."""
        if any(word.partition("=")[0] in _HELP for word in self.argv):
            return False
        return self.command in _SERVER_MODULES or (self.kind == "vllm" and self.command in _SERVER_COMMANDS)


def recognise(argv: tuple[str, ...]) -> Workload:
    """Return what kind of workload a command line is."""
    for index, word in enumerate(argv):
        name = PurePath(word).name
        kind, command = _kind(name, argv[index + 1 :])
        if kind != "program":
            chosen = not _CHOOSERS.isdisjoint(PurePath(w).name for w in argv[:index])
            starter = None if chosen and not PurePath(word).is_absolute() else word
            return Workload(
                kind=kind, argv=argv, command=command, ranks=_ranks(argv), eager=_eager(argv), starter=starter
            )
        if name not in _LAUNCHERS and index == 0:
            break
    return Workload(kind="program", argv=argv)


def _kind(name: str, rest: tuple[str, ...]) -> tuple[Kind, str | None]:
    """Return what a program of this name is when it is given `rest`, and vLLM's subcommand or Python's module."""
    if name == "vllm":
        command = rest[0] if rest else None
        if command == "bench" and rest[1:2] and rest[1] in _BENCHES_OF_A_SERVER:
            return "python", "bench serve"
        return ("vllm" if command in _ENGINE_COMMANDS else "python"), command
    if _PYTHON.fullmatch(name):
        module = _module(rest)
        return ("vllm" if module and module.startswith(_VLLM_MODULES) else "python"), module
    if name in _PYTHON_LAUNCHERS or name.endswith(".py"):
        return "python", None
    return "program", None


def _module(arguments: tuple[str, ...]) -> str | None:
    for index, word in enumerate(arguments):
        if word == "-m" and index + 1 < len(arguments):
            return arguments[index + 1]
        if not word.startswith("-"):
            return None
    return None


def _ranks(argv: tuple[str, ...]) -> int:
    """Return the number of ranks that vLLM's own flags ask for: tensor times pipeline parallel size."""
    total = 1
    for names in (("--tensor-parallel-size", "-tp"), ("--pipeline-parallel-size", "-pp")):
        for index, word in enumerate(argv):
            flag, _, value = word.partition("=")
            if flag.replace("_", "-") in names:
                value = value or (argv[index + 1] if index + 1 < len(argv) else "")
                total *= int(value) if value.isdecimal() and value != "0" else 1
    return total


def _eager(argv: tuple[str, ...]) -> bool:
    """Return whether compile and graphs are off already: `--enforce-eager`, or optimisation level 0 (`-O0`)."""
    words = [word.replace("_", "-") for word in argv]
    level = any(a in {"-O", "--optimization-level"} and b == "0" for a, b in pairwise(words))
    return "--enforce-eager" in words or level or not {"-O0", "-O=0", "--optimization-level=0"}.isdisjoint(words)
