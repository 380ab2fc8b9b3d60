"""Says what kind of command line a workload is: what flags and hooks can reach it."""

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
_VLLM_COMMANDS = {"serve", "bench", "chat", "complete", "run-batch", "launch"}
_ENGINE_COMMANDS = {"serve", "bench", "run-batch", "launch"}
_VLLM_MODULES = ("vllm.entrypoints.",)
_BENCHES_OF_A_SERVER = {"serve"}  # `vllm bench serve` is a client: engine flags mean nothing to it


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What a command line is: `vllm` takes engine flags, `python` can be reached by a plug-in, a program by neither.

    `command` is vLLM's subcommand or Python's module; `ranks` and `eager` are what vLLM's own flags ask for.
    """

    kind: Kind
    command: str | None = None
    ranks: int = 1
    eager: bool = False

    @property
    def python(self) -> bool:
        """Whether a Python interpreter runs it."""
        return self.kind != "program"


def recognise(argv: tuple[str, ...]) -> Workload:
    """Return what kind of workload a command line is."""
    ranks, eager = _ranks(argv), _eager(argv)
    for index, word in enumerate(argv):
        name = PurePath(word).name
        if name == "vllm":
            rest = argv[index + 1 :]
            command = rest[0] if rest else None
            if command == "bench" and rest[1:2] and rest[1] in _BENCHES_OF_A_SERVER:
                return Workload(kind="python", command="bench serve")
            takes_flags = command in _ENGINE_COMMANDS
            return Workload(kind="vllm" if takes_flags else "python", command=command, ranks=ranks, eager=eager)
        if _PYTHON.fullmatch(name):
            module = _module(argv[index + 1 :])
            if module and module.startswith(_VLLM_MODULES):
                return Workload(kind="vllm", command=module, ranks=ranks, eager=eager)
            return Workload(kind="python", command=module, ranks=ranks, eager=eager)
        if name in _PYTHON_LAUNCHERS or name.endswith(".py"):
            return Workload(kind="python", ranks=ranks, eager=eager)
        if name not in _LAUNCHERS and index == 0:
            return Workload(kind="program")
    return Workload(kind="program")


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
