"""Read a runbook, resolve it and lint it: what the rest of the program starts from."""

from __future__ import annotations

from collections.abc import Sequence

from vdbg_env.common.errors import BadDocument
from vdbg_env.common.yaml_source import YamlSource
from vdbg_env.runbook.catalogue import Catalogue
from vdbg_env.runbook.lint import checks as lint
from vdbg_env.runbook.model import Runbook
from vdbg_env.runbook.parsing.library import Library
from vdbg_env.runbook.parsing.resolve import resolve

_ADVICE = "vdbg-env runbooks schema shows every key; docs/07-runbook-format.md explains them"


def load(
    source: YamlSource, library: Library, catalogue: Catalogue, *, runbooks: Sequence[str] | None = None
) -> Runbook:
    """Return one runbook, linted; raises BadDocument with every complaint, in the order of the file.

    `catalogue` has the built-ins that it may use; `runbooks` are the names a step may branch to, None accepts any.
    """
    resolved = resolve(source, library, catalogue)
    found = {*resolved.complaints, *lint.complaints(resolved.runbook, resolved.places, runbooks=runbooks)}
    if found:
        in_order = sorted(found, key=lambda x: (x.file, x.line, x.column, x.what))
        raise BadDocument(tuple(in_order), next_step=_ADVICE)
    return resolved.runbook
