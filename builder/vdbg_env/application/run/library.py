"""The runbooks and shared steps that are available, parsed and linted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from vdbg_env.application.ports.runbook_files import Entry, RunbookFiles
from vdbg_env.common.errors import BadDocument, BadInput, Complaint, nearest
from vdbg_env.common.yaml_source import Value
from vdbg_env.runbook.catalogue import Catalogue
from vdbg_env.runbook.load import load
from vdbg_env.runbook.machine import transitions
from vdbg_env.runbook.model import Data, Runbook
from vdbg_env.runbook.parsing.library import Library
from vdbg_env.runbook.state import BranchTo, Facts, RunState

if TYPE_CHECKING:
    from vdbg_env.record.run_directory import RunHead


class RunbookLibrary:
    """The runbooks by name."""

    def __init__(self, files: RunbookFiles, catalogue: Callable[[], Catalogue]) -> None:
        self._files = files
        self._catalogue = catalogue  # called for the first runbook that is loaded: names need no built-in

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """Every runbook that can be started by name."""
        return tuple(self._files.runbooks())

    @cached_property
    def steps(self) -> Library:
        """The shared steps."""
        return Library(dict(self._files.shared_steps()))

    def load(self, name: str) -> Runbook:
        """Return the linted runbook called `name`, or the one in the file of that path.

        Raises BadInput with the nearest name when there is none, and BadDocument when it is wrong.
        """
        return self.load_entry(self.entry(name))

    def load_recorded(self, head: RunHead) -> Runbook:
        """Return the runbook of a recorded run: its own copy, else its file if that is still there, else by name."""
        named = any(entry.name == head.runbook and entry.origin == "named" for entry in self.entries)
        return self.load(head.runbook if named or not self._files.exists(head.runbook_file) else head.runbook_file)

    def full_path(self, file: str) -> str:
        """Return the path of a runbook's file that names it in any folder."""
        return self._files.full_path(file)

    def kept_texts(self, name: str) -> dict[str, str]:
        """Return the texts of the runbooks and shared steps that a run of `name` needs again in any folder.

        Those that are shipped are left out: they are found by their names. So are files that a run may hand over to
        and that cannot be read: the run does without them too.
        """
        known = {entry.name: entry for entry in self.entries}
        wanted = [self.entry(name), *(entry for entry in self.entries if entry.origin == "named")]
        texts: dict[str, str] = {}
        while wanted:
            entry = wanted.pop(0)
            file = f"{entry.name}.yaml"
            if entry.origin == "shipped" or file in texts:
                continue
            try:
                source = self._files.read(entry.path)
            except (BadInput, BadDocument):
                continue
            texts[file] = _text(source.text)
            values = [source.value]
            for step in _said(source.value, "from") & set(self.steps.names):
                texts[f"lib/{step}.yaml"] = _text(self.steps.text(step))
                values.append(self.steps.value(step))
            wanted += [known[other] for value in values for other in _said(value, "runbook") if other in known]
        return texts

    def branching(self, inputs: Mapping[str, Data], facts: Facts) -> Callable[[BranchTo], RunState]:
        """Return what starts another runbook on the same workload.

        The inputs it shares keep their values, the others have their defaults.
        """

        def start(branch: BranchTo) -> RunState:
            other = self.load(branch.runbook)
            own = {name: inputs.get(name, wanted.default) for name, wanted in other.inputs.items()}
            return transitions.start(other, own, facts, came_from=branch.came_from)[0]

        return start

    def entry(self, name: str) -> Entry:
        """Return where a runbook is; raises BadInput with the nearest name."""
        if name.endswith((".yaml", ".yml")) or "/" in name:
            return self._files.named(name)
        known = {entry.name: entry for entry in self.entries}
        if name not in known:
            here = f"./{name}.yaml"
            close = here if self._files.exists(here) else nearest(name, known)
            hint = f" (did you mean {close!r}?)" if close else ""
            raise BadInput(f"no runbook {name!r}{hint}", next_step="vdbg-env runbooks list")
        return known[name]

    def load_entry(self, entry: Entry) -> Runbook:
        """Return the linted runbook of one file; raises BadDocument with every complaint."""
        source = self._files.read(entry.path)
        runbook = load(source, self.steps, self._catalogue(), runbooks=[x.name for x in self.entries])
        if runbook.name != entry.path.stem:
            what = f"the file is called {entry.path.name}, so the runbook's name is {entry.path.stem!r}"
            raise BadDocument((source.complaint(("metadata", "name"), what),))
        return runbook

    def input_names(self) -> frozenset[str]:
        """Return the inputs that any runbook has; one that cannot be read has none."""
        names: set[str] = set()
        for entry in self.entries:
            with suppress(BadDocument, BadInput):
                names |= self.load_entry(entry).inputs.keys()
        return frozenset(names)

    def lint(self, targets: Sequence[str]) -> tuple[tuple[Entry, tuple[Complaint, ...]], ...]:
        """Return every complaint about the runbooks named, or about all that are not shadowed; raises BadInput."""
        entries = [self.entry(target) for target in targets] if targets else list(self.entries)
        return tuple((entry, self._complaints(entry)) for entry in entries)

    def _complaints(self, entry: Entry) -> tuple[Complaint, ...]:
        try:
            self.load_entry(entry)
        except BadDocument as error:
            return error.complaints
        return ()


def _said(value: Value, key: str) -> set[str]:
    """Return the texts that a document has anywhere below a key of this name."""
    if isinstance(value, list):
        return {text for one in value for text in _said(one, key)}
    if not isinstance(value, dict):
        return set()
    own = value.get(key)
    return {text for one in value.values() for text in _said(one, key)} | ({own} if isinstance(own, str) else set())


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
