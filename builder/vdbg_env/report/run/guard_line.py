"""Write what guard announces of a failure: one line of JSON, schema `vdbg-env/guard/v1`; fields are only ever added."""

from __future__ import annotations

import json
from typing import Literal

from vdbg_env.application.guard.end import Announcement
from vdbg_env.evidence.observation import Ended, EndedBy
from vdbg_env.report.codec import document as doc
from vdbg_env.report.codec.document import Document, field
from vdbg_env.runbook.state import Verdict

_HOSTS = 8  # named in the line; `history` counts all
_TEXT = 600  # characters of one text: a message is one line to read
_SHORTENED = ("next", "kernel", "location", "found", "ended")


class HowEnded(Document, of=Ended):
    """How the command ended."""

    by: EndedBy
    code: int | None
    signal: int | None


class GuardDocument(Document, of=Announcement):
    """What guard prints when the command that it ran did not end well, sends to a hook, and leaves as
    the termination message. In the latter the longest texts are null where the line would exceed 4,096 bytes.
    """

    schema: Literal["vdbg-env/guard/v1"]
    verdict: Verdict = field("report.verdict")
    status: int = field(
        doc="guard's own exit status: that of the command, 128 and the number of its signal, or --exit-status-on-crash"
    )
    ended: HowEnded | None
    found: str | None = field(lambda said, _: _cut(said.lead.message if said.lead else said.report.why))
    kernel: str | None = field(lambda said, _: _cut(said.lead.kernel if said.lead else None))
    location: str | None = field(lambda said, _: str(said.lead.location) if said.lead and said.lead.location else None)
    process: str | None = field(lambda said, _: said.lead.process if said.lead else None, doc="which process failed")
    rank: int | None = field(lambda said, _: said.lead.rank if said.lead else None, doc="its own rank in the workload")
    fingerprint: str | None = field(lambda said, _: said.report.fingerprint.id if said.report.fingerprint else None)
    seen: int | None = field(
        lambda said, _: said.seen.times if said.seen else None,
        doc="which crash of this fingerprint it is; null where the cause has none",
    )
    seen_on: list[str] = field(
        lambda said, _: said.seen.hosts[:_HOSTS] if said.seen else (), doc="hosts it was seen on, eight at most"
    )
    history: str | None = field(
        lambda said, _: str(said.seen) if said.seen else None, doc="that in words: seen 14 times on 3 nodes since ..."
    )
    run: str = field("report.run")
    report: str | None = field("report_file", doc="the report's path on the machine that ran the command")
    next: str | None = field(lambda said, _: _cut(said.next_step), doc="what to type next")


def guard_line(said: Announcement, most: int | None = None) -> str:
    """Return one line; with `most`, its longest texts are left out until it has fewer bytes than that."""
    document = doc.plain(said, GuardDocument)
    for name in _SHORTENED:
        line = json.dumps(document)  # ASCII: a byte is a character
        if most is None or len(line) < most:
            return line
        document[name] = None
    return json.dumps(document)


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= _TEXT else f"{text[:_TEXT]}..."
