"""Packages of Debian 13, fetched and unpacked without being installed, for the scripts that need a program of it."""

import hashlib
import lzma
import os
import re
import subprocess
import urllib.request
from pathlib import Path

RELEASE, ARCHITECTURE, COMPONENTS = "trixie", "amd64", ("main", "non-free")


def mirror() -> str:
    """Return the mirror of DEBIAN_MIRROR, else the first one of apt that is no security archive; exits without one."""
    asked = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI)"], capture_output=True, text=True)
    sites = [line.rstrip("/") for line in asked.stdout.splitlines()]
    found = os.environ.get("DEBIAN_MIRROR") or next((site for site in sites if site.endswith("/debian")), None)
    if not found:
        raise SystemExit("no Debian mirror is known here: set DEBIAN_MIRROR")
    return found


def index(mirror: str) -> dict[str, dict[str, str]]:
    """Return every package by name, and by what it provides."""
    known: dict[str, dict[str, str]] = {}
    for component in COMPONENTS:
        url = f"{mirror}/dists/{RELEASE}/{component}/binary-{ARCHITECTURE}/Packages.xz"
        with urllib.request.urlopen(url, timeout=120) as answer:
            text = lzma.decompress(answer.read()).decode()
        for paragraph in text.split("\n\n"):
            fields = dict(re.findall(r"^(\S+): (.*)$", paragraph, re.MULTILINE))
            if "Package" in fields:
                known[fields["Package"]] = fields
                for name in names(fields.get("Provides", "")):
                    known.setdefault(name, fields)
    return known


def closure(root: str, known: dict[str, dict[str, str]]) -> list[dict[str, str]]:
    """Return a package and all libraries below it; programs that the debugger starts are not needed."""
    wanted, found = [root], {}
    while wanted:
        name = wanted.pop()
        if name in found or name not in known or not (name == root or re.match(r"lib|zlib|gcc-", name)):
            continue
        found[name] = known[name]
        wanted += names(known[name].get("Depends", "")) + names(known[name].get("Pre-Depends", ""))
    return list({fields["Filename"]: fields for fields in found.values()}.values())


def names(relation: str) -> list[str]:
    """Return the first alternative of each package of a dependency field."""
    return [re.split(r"[ :(|]", part.strip())[0] for part in relation.split(",") if part.strip()]


def fetch(url: str, folder: Path, digest: str) -> Path:
    """Download a file and hold it against its SHA-256."""
    path = folder / url.rpartition("/")[2]
    with urllib.request.urlopen(url, timeout=120) as answer:
        path.write_bytes(answer.read())
    if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        raise SystemExit(f"{url} does not have the SHA-256 of the index")
    return path


def unpack(package: Path, folder: Path) -> None:
    """Unpack a Debian package."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True)
    package.unlink()
