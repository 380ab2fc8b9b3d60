"""What the site needs besides its pages: the link to the repository, and a table of options without Python's objects.

The link is REPOSITORY of the package, where the person who publishes the site set one.
"""

import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vdbg_env import REPOSITORY

# mkdocs-click prints the value of an option that has no default, and a default that is computed, as Python shows them;
# what is computed is in the words of the option.
_OBJECT = r"Sentinel\.\w+|&lt;[^&]*(?:&lt;[^&]*&gt;)?[^&]* at 0x[0-9a-f]+&gt;"
_NO_DEFAULT = re.compile(rf"(<td>)(?:<code>(?:{_OBJECT}|\(\))</code>|``|None)(</td>\s*</tr>)")


def on_config(config: Any) -> Any:
    """Set the link, and its text to what follows the host; let the page of commands find `site_commands`."""
    sys.path.append(str(Path(__file__).parent))
    config.repo_url = REPOSITORY or None
    config.repo_name = urlsplit(REPOSITORY).path.strip("/") or None
    return config


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Leave the default of an option empty where it has none that can be typed."""
    return _NO_DEFAULT.sub(r"\1\2", html) if page.file.src_uri == "reference/commands.md" else html


def on_post_build(config: Any) -> None:
    """End the build where a page shows an object of Python as Python does."""
    shown = [
        f"{page}: {found[0]}"
        for page in sorted(Path(config.site_dir).rglob("*.html"))
        if (found := re.search(_OBJECT, page.read_text()))
    ]
    if shown:
        raise SystemExit("\n".join(("a page shows an object of Python", *shown)))
