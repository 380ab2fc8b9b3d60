"""The contracts of built-in steps and readers, and the catalogue of those that a runbook may name.

A *step* is done by the tool itself (`uses:`); a *reader* turns what a run step left behind into typed results and
findings (`readers:`). Each built-in declares its contract next to its work, in `vdbg_env.run.builtin_steps` and
`vdbg_env.run.builtin_readers`. The catalogue is handed to the loader of runbooks: lint finds a misspelt result before
anything starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["step", "reader"]
Kind = Literal["string", "int", "float", "bool", "list", "any"]


@dataclass(frozen=True, kw_only=True)
class BuiltinContract:
    """One built-in of one version: its parameters and results by name and kind.

    `by_hand` is what a person types for much the same without this program.
    """

    name: str
    version: int
    role: Role
    does: str
    parameters: Mapping[str, Kind] = field(default_factory=dict)
    results: Mapping[str, Kind] = field(default_factory=dict)
    by_hand: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The built-ins that are available."""

    contracts: tuple[BuiltinContract, ...] = ()

    def find(self, name: str, version: int) -> BuiltinContract | None:
        """Return the contract of a built-in, None where there is none of that name and version."""
        return next((c for c in self.contracts if (c.name, c.version) == (name, version)), None)

    def names(self, role: Role) -> tuple[str, ...]:
        """Return how runbooks name the built-ins of a role."""
        return tuple(f"builtin/{c.name}@v{c.version}" for c in self.contracts if c.role == role)


TOOLS: tuple[str, ...] = (
    "compute-sanitizer",
    "cuda-gdb",
    "cuobjdump",
    "nvdisasm",
    "nvidia-smi",
    "py-spy",
    "dcgmi",
    "ncu",
    "nsys",
    "gdb",
    "git",
    "python3",
    "vllm",
)
"""Programs a runbook may require: those the tool knows how to look for and how to advise about."""
