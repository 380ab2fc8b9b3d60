"""Line packs at an address, the cache of what was fetched, and where packs are put."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from platformdirs import user_cache_path

from vdbg_env.application.ports.files import PackTarget
from vdbg_env.common.errors import BadInput
from vdbg_env.crash.line_packs import LineStore

if TYPE_CHECKING:
    from vdbg_env.adapters.lines.cache import PackCache

BOUND: Final = "VDBG_LINES_CACHE"

_BOUND: Final = 4 << 30


def open_remote(name: str, environment: Mapping[str, str]) -> LineStore:
    """Return the store at an address; raises BadInput for one of another form."""
    if name.startswith("oci://"):
        from vdbg_env.adapters.lines.registry import RegistryStore, parse_reference

        return RegistryStore(parse_reference(name), cache(environment))
    from vdbg_env.adapters.lines.http_store import HttpStore  # loads an HTTP client

    return HttpStore(name, cache(environment))


def open_target(name: str) -> PackTarget:
    """Return the place that a name means to put packs into; raises BadInput for one that only gives them."""
    if name.startswith(("http://", "https://")):
        raise BadInput(
            f"{name} only gives line packs",
            next_step="vdbg-env lines push PACK FOLDER, where FOLDER is what the web server hands out at that address",
        )
    if name.startswith("oci://"):
        from vdbg_env.adapters.lines.registry import RegistryTarget, parse_reference

        return RegistryTarget(parse_reference(name))
    from vdbg_env.adapters.lines.published import PublishedFolder

    return PublishedFolder(Path(name).expanduser())


def cache(environment: Mapping[str, str]) -> PackCache:
    """Return the cache of what was fetched; VDBG_LINES_CACHE says how large it may be, such as 8g."""
    from vdbg_env.adapters.lines.cache import PackCache  # what fetches loads more than what reads a folder
    from vdbg_env.image.settings import parse_size

    bound = environment.get(BOUND)
    return PackCache(cache_folder(), parse_size(bound, BOUND) if bound else _BOUND)


def cache_folder() -> Path:
    """Return the folder of packs that were fetched: `vdbg-env/lines` in the user's cache folder."""
    return user_cache_path("vdbg-env") / "lines"
