"""What may be done about a signature or a class of failures, in which releases of which program."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from vdbg_env.common.errors import BadDocument, Complaint, nearest
from vdbg_env.common.yaml_source import YamlSource, validate
from vdbg_env.evidence.triage.document import RemediesDocument


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """What to do about a signature; it holds from release `since` of `program` on, and before `until`."""

    do: str
    program: str
    since: str | None
    until: str | None
    source: str

    def fits(self, vllm: str | None) -> bool:
        """Return whether it may hold: the release of another program, and one that no log has, are not known."""
        if self.program != "vLLM" or vllm is None:
            return True
        key = _release_key(vllm)
        return (not self.since or key >= _release_key(self.since)) and (
            not self.until or key < _release_key(self.until)
        )

    @property
    def releases(self) -> str:
        """Where it holds, in words."""
        since, until = (f"from {self.since}" if self.since else ""), (f"before {self.until}" if self.until else "")
        return " ".join(filter(None, (self.program, since, until)))


@dataclass(frozen=True, kw_only=True)
class Remedies:
    """The remedies of a folder, by the signature (the id of a rule) and by the class that they are for, in order."""

    of_signature: dict[str, tuple[Remedy, ...]]
    of_class: dict[str, tuple[Remedy, ...]]


def read_remedies(sources: Sequence[YamlSource], signatures: Collection[str], classes: Collection[str]) -> Remedies:
    """Read remedies; raises BadDocument where one names a signature or a class that does not exist."""
    of_signature: dict[str, list[Remedy]] = defaultdict(list)
    of_class: dict[str, list[Remedy]] = defaultdict(list)
    complaints: list[Complaint] = []
    for source in sources:
        for index, entry in enumerate(validate(RemediesDocument, source).remedies):
            remedy = Remedy(**entry.model_dump(exclude={"signatures", "classes"}))
            for key, named, known, found in (
                ("signatures", entry.signatures, signatures, of_signature),
                ("classes", entry.classes, classes, of_class),
            ):
                for place, name in enumerate(named):
                    found[name].append(remedy)
                    if name not in known:
                        here = ("remedies", index, key, place)
                        said = f"no {'rule' if key == 'signatures' else 'class'} {name!r}"
                        complaints.append(source.complaint(here, said, suggestion=nearest(name, known)))
    if complaints:
        raise BadDocument(tuple(complaints))
    return Remedies(
        of_signature={name: tuple(some) for name, some in of_signature.items()},
        of_class={name: tuple(some) for name, some in of_class.items()},
    )


def _release_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])
