"""Look up the source text of inline chains, wherever the sources are now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpucore.dwarf import Chain
from vdbg_env.crash.files import SourceText

SourceLines = Mapping[tuple[str, int], str]
"""The text of source lines by (file, 1-based line), those that were found."""


def find_lines(chains: Iterable[Chain], source_text: SourceText) -> SourceLines:
    """Look up the text of every place of the chains, once each; of other headers than the code's none is taken."""
    places = dict.fromkeys((frame.file, frame.line) for chain in chains for frame in chain if not frame.headers)
    found = {place: source_text.line(*place) for place in places}
    return {place: text for place, text in found.items() if text is not None}
