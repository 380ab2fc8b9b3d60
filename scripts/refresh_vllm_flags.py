"""Refreshes images/knowledge/flags/vllm-surface.yaml from the source distributions of vLLM releases.

    python scripts/refresh_vllm_flags.py 0.24.0 0.33.0          # downloads from the index pip uses
    python scripts/refresh_vllm_flags.py --sdist vllm-0.33.0.tar.gz

Releases already in the table stay. The index is PIP_INDEX_URL, else pip's own setting, else PyPI.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import ssl
import subprocess
import sys
import tarfile
import urllib.parse
import urllib.request
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from vdbg_env.evidence.knowledge.surface_table import ReleaseTable, read_release_table, render_release_table
from vdbg_env.evidence.knowledge.vllm_surface import Surface, is_wanted, read_surface

TABLE = Path(__file__).parents[1] / "images" / "knowledge" / "flags" / "vllm-surface.yaml"
MAX_SDIST = 400 << 20


def main(argv: Sequence[str] | None = None) -> int:
    """Read every release asked for into the table and write it."""
    asked = _arguments(argv)
    table = read_release_table(TABLE.read_text()) if TABLE.exists() else ReleaseTable()
    for path in asked.sdist:
        table = table.with_release(_version_of(path.name), surface_of(path))
    for version in asked.versions:
        table = table.with_release(version, surface_of(download(version, asked.cache)))
    today = datetime.now(UTC).date().isoformat()
    TABLE.write_text(render_release_table(table, as_of=asked.as_of or today))
    print(f"{TABLE}: {len(table.names)} names of {', '.join(table.releases)}")
    return 0


def surface_of(sdist: Path) -> Surface:
    """Return the names a source distribution defines."""
    files: dict[str, str] = {}
    with tarfile.open(sdist) as archive:
        for member in archive:
            path = member.name.partition("/")[2]
            if member.isfile() and is_wanted(path):
                stream = archive.extractfile(member)
                assert stream is not None, member.name
                files[path] = stream.read().decode()
    return read_surface(files)


def download(version: str, cache: Path) -> Path:
    """Return the path of a release's source distribution, fetched into `cache` and checked against the index's hash."""
    name = f"vllm-{version}.tar.gz"
    path = cache / name
    if not path.exists():
        url, digest = _find(name)
        data = _get(url)
        if hashlib.sha256(data).hexdigest() != digest:
            raise SystemExit(f"{name}: the index says sha256 {digest}, the file has another")
        cache.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".part")
        partial.write_bytes(data)
        partial.rename(path)
    return path


def _find(name: str) -> tuple[str, str]:
    page = index_url().rstrip("/") + "/vllm/"
    links = re.findall(r'href="([^"#]+)#sha256=([0-9a-f]{64})"', _get(page).decode())
    for link, digest in links:
        if urllib.parse.unquote(link).rsplit("/", 1)[-1] == name:
            return urllib.parse.urljoin(page, link), digest
    raise SystemExit(f"{page} offers no {name}")


def index_url() -> str:
    """Return the package index pip would ask."""
    if told := os.environ.get("PIP_INDEX_URL"):
        return told
    ask = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    for words in (["-m", "pip", "config", "get", "global.index-url"], ["-c", ask]):
        asked = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
        if asked.returncode == 0 and asked.stdout.strip():
            return asked.stdout.strip()
    raise SystemExit("pip names no package index; try: PIP_INDEX_URL=ADDRESS and the same command")


def _get(url: str) -> bytes:
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE"))
    with urllib.request.urlopen(url, timeout=120, context=context) as answer:
        data: bytes = answer.read(MAX_SDIST)
    return data


def _version_of(name: str) -> str:
    match = re.fullmatch(r"vllm-(\d[\w.]*?)\.tar\.gz", name)
    if match is None:
        raise SystemExit(f"{name} is not named like a source distribution of vLLM")
    return match[1]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", help="releases to download, as 0.33.0")
    parser.add_argument("--sdist", type=Path, action="append", default=[], help="a source distribution at hand")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "vdbg-env" / "sdists")
    parser.add_argument("--as-of", help="the date to write, YYYY-MM-DD; today without it")
    asked = parser.parse_args(argv)
    if not asked.versions and not asked.sdist:
        parser.error("name a release or give --sdist")
    return asked


if __name__ == "__main__":
    raise SystemExit(main())
