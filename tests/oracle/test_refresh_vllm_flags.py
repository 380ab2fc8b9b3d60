"""The table of the names of vLLM is made anew from the source distributions of two releases, from the index."""

import urllib.error
from pathlib import Path

import pytest

from scripts.refresh_vllm_flags import TABLE, download, surface_of
from vdbg_env.evidence.knowledge import read_release_table

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("version", ["0.14.1", "0.33.0"])
def test_the_shipped_table_is_what_the_release_defines(version: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    try:
        sdist = download(version, tmp_path_factory.getbasetemp() / "sdists")
    except (urllib.error.URLError, TimeoutError) as error:
        pytest.skip(f"the package index does not answer: {error}")
    surface = surface_of(Path(sdist))
    table = read_release_table(TABLE.read_text())
    assert {name for name, having in table.names.items() if version in having} == surface.variables | surface.flags
    assert ("VLLM_ATTENTION_BACKEND" in surface.variables) == (version == "0.14.1")
    assert ("--watchdog-config" in surface.flags) == (version == "0.33.0")
