"""The shipped knowledge of flags, variables and stale advice."""

from __future__ import annotations

import re
from functools import cache

from vdbg_env.common.errors import BadInput
from vdbg_env.common.resources import data_dir, read_tables
from vdbg_env.common.yaml_source import read
from vdbg_env.evidence.knowledge.names import Knowledge, NameJudgement, read_knowledge
from vdbg_env.evidence.knowledge.surface_table import read_release_table

_ADVICE, _SURFACE = "advice.yaml", "vllm-surface.yaml"


@cache
def shipped_knowledge() -> Knowledge:
    """Read the shipped tables."""
    folder = data_dir("images") / "knowledge" / "flags"
    tables = dict(read_tables(folder))
    advice, surface = (str(folder / name) for name in (_ADVICE, _SURFACE))
    return read_knowledge(
        (read(text, name) for name, text in tables.items() if name not in {advice, surface}),
        read(tables[advice], advice),
        read_release_table(tables[surface], surface),
    )


def is_name(word: str) -> bool:
    """Whether a word has the shape of a variable or a flag, and not of a runbook or a step."""
    return re.fullmatch(r"--?[A-Za-z][\w.=-]*|[A-Z][A-Z0-9_]{2,}", word) is not None


def explain_name(name: str, *, vllm: str | None = None) -> str:
    """Return what is known of a flag or variable, as lines for a terminal; raises BadInput for one in no table."""
    knowledge = shipped_knowledge()
    judged: NameJudgement = knowledge.judge_name(name, vllm)
    if judged.status == "unknown":
        raise BadInput(
            f"nothing is known here of {judged.message}",
            cause="a misspelt name, or a variable of a program whose names are not collected here",
            next_step="vdbg-env runbooks list, for the names of runbooks",
        )
    lines = [f"{name}  ({judged.status}, as of vLLM {vllm or knowledge.newest})"]
    lines.append(f"  {judged.what or judged.message}")
    if judged.what and judged.level != "ok":
        lines.append(f"  {judged.message}")
    if judged.replaced_by:
        lines.append(f"  use instead: {judged.replaced_by}")
    if judged.source:
        lines.append(f"  source: {judged.source}")
    return "\n".join(lines) + "\n"
