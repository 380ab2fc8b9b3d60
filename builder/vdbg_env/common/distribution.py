"""What the metadata of this program's own distribution say: what it requires, and what to type where some is missing.

The name on a package index is no one's yet, so nothing here installs by it.
"""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from importlib import metadata
from typing import Final, NamedTuple

from vdbg_env.common.resources import CHECKOUT

NAME: Final = "vdbg-env"
_EXTRA = re.compile(r"extra == ['\"]([\w.-]+)['\"]")


class Requirements(NamedTuple):
    """What is always required, what each extra adds, and of which Python."""

    always: tuple[str, ...]
    extras: dict[str, tuple[str, ...]]
    python: str


def requirements() -> Requirements | None:
    """Return what this program requires, None where its files were copied and have no metadata."""
    if CHECKOUT is not None and (project := CHECKOUT / "pyproject.toml").is_file():
        table = tomllib.loads(project.read_text())["project"]
        extras = {name: tuple(texts) for name, texts in table["optional-dependencies"].items()}
        return Requirements(tuple(table["dependencies"]), extras, table["requires-python"])
    try:
        installed = metadata.distribution(NAME)
    except metadata.PackageNotFoundError:
        return None
    always, added = [], dict[str, list[str]]()
    for text in installed.requires or ():
        if extra := _EXTRA.search(text):
            added.setdefault(extra[1], []).append(text.partition(";")[0].strip())
        else:
            always.append(text)
    extras = {name: tuple(texts) for name, texts in added.items()}
    return Requirements(tuple(always), extras, str(installed.metadata["Requires-Python"]))


def install_words(extra: str) -> str:
    """Return the command that adds the packages of an extra to the Python that runs this."""
    known = requirements()
    packages = known.extras.get(extra, ()) if known else ()
    return shlex.join([sys.executable, "-m", "pip", "install", *(packages or (extra,))])
