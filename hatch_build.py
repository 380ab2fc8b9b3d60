"""The part of the metadata that follows from the repository's address; without one, links stay relative."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?\[[^\]]*\]\()(?!https?:|#|mailto:)([^)\s]+)(\))")


class AddressHook(MetadataHookInterface):
    """Sets `readme`, and `urls` and `authors` once `vdbg_env/__init__.py` names them."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the fields to the project's metadata."""
        root = Path(self.root)
        known = constants((root / "builder" / "vdbg_env" / "__init__.py").read_text())
        address, author = known["REPOSITORY"].rstrip("/"), known["AUTHOR"]
        text = (
            absolute_links((root / "README.md").read_text(), address) if address else (root / "README.md").read_text()
        )
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        if address:
            pages = {"Documentation": "tree/main/docs", "Changelog": "blob/main/CHANGELOG.md", "Issues": "issues"}
            metadata["urls"] = {"Repository": address, **{name: f"{address}/{page}" for name, page in pages.items()}}
        if author:
            metadata["authors"] = [{"name": author}]


def constants(source: str) -> dict[str, str]:
    """Return the texts that a module assigns, without running it."""
    return {
        node.targets[0].id: node.value.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def absolute_links(text: str, address: str) -> str:
    """Return Markdown whose links to files of the repository work on any page."""
    return _LINK.sub(lambda found: f"{found[1]}{address}/{_view(found[1])}/main/{found[2]}{found[3]}", text)


def _view(start: str) -> str:
    return "raw" if start.startswith("!") else "blob"
