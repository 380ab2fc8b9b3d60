"""The final inputs of a runbook, and the workload among them, recognised once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from vdbg_env.runbook.model import Data
from vdbg_env.runbook.workload.recognise import Workload, recognise


class Inputs(Mapping[str, Data]):
    """A runbook's inputs by name, each of its declared type; the workload is what the input `argv` starts."""

    def __init__(self, values: Mapping[str, Data]) -> None:
        self._values = dict(values)

    @cached_property
    def workload(self) -> Workload:
        """The command line under study; its `argv` is empty where the runbook takes none."""
        argv = self._values.get("argv")
        return recognise(tuple(str(word) for word in argv) if isinstance(argv, list) else ())

    def __getitem__(self, name: str) -> Data:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Inputs({self._values!r})"
