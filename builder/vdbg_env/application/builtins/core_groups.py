"""Which GPU cores of several ranks have one cause."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from vdbg_env.evidence.finding import Finding
from vdbg_env.evidence.fingerprint import Crash, Fingerprint, fingerprint

_RANK = re.compile(r"steps/[^/]+/\d+/[^/]+-(?P<rank>\d+)/")
_NAMED = 16  # ranks of one group


def core_groups(findings: Mapping[str, Sequence[Finding]]) -> Iterator[str]:
    """Yield one line for each cause, the most frequent first; nothing for a single core.

    `findings` are those of each core, by its path in the run. A core without line info is in the group of those with
    the same kernel and exception.
    """
    if len(findings) < 2:
        return
    groups: list[tuple[Fingerprint, list[str]]] = []
    silent: list[str] = []
    for name, found in findings.items():
        cause = fingerprint(Crash(findings=found))
        if cause is None:
            silent.append(name)
            continue
        same = next((names for other, names in groups if other.is_same_cause(cause)), None)
        if same is None:
            groups.append((cause, [name]))
        else:
            same.append(name)
    for cause, names in sorted(groups, key=lambda group: -len(group[1])):
        yield f"{len(names)} of {len(findings)} cores have one cause, {cause.id} ({cause}){_of_ranks(names)}"
    if silent:
        yield f"{len(silent)} of {len(findings)} cores have no fault{_of_ranks(silent)}"


def _of_ranks(names: Sequence[str]) -> str:
    ranks = sorted({int(found["rank"]) for name in names if (found := _RANK.search(name))})
    shown = ", ".join(map(str, ranks[:_NAMED])) + (f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else "")
    return f": rank{'s' if len(ranks) > 1 else ''} {shown}" if ranks else ""
