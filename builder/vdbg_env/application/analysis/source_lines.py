"""Looks up the source text of inline chains, wherever the sources lie now."""

from __future__ import annotations

from collections.abc import Iterable

from vdbg_env.application.ports import SourceText
from vdbg_env.cuda.lines.source_frame import Chain
from vdbg_env.report.core.source_chain import SourceLines, leaves


def find_lines(chains: Iterable[Chain], source_text: SourceText) -> SourceLines:
    """Look up the text of every place of the chains, once each."""
    found = {place: source_text.line(*place) for place in leaves(chains)}
    return {place: text for place, text in found.items() if text is not None}
