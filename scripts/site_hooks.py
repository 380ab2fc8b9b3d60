"""Gives the site its link to the repository: REPOSITORY of the package, where the person who publishes it set one."""

from typing import Any
from urllib.parse import urlsplit

from vdbg_env import REPOSITORY


def on_config(config: Any) -> Any:
    """Set the link, and its text to what follows the host."""
    config.repo_url = REPOSITORY or None
    config.repo_name = urlsplit(REPOSITORY).path.strip("/") or None
    return config
