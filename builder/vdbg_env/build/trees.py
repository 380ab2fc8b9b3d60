"""What is built from: folders of sources, by content and commit, and this program as a wheel."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import tomllib
import zipfile
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

from vdbg_env import __version__
from vdbg_env.common.console import one_line
from vdbg_env.common.errors import BadInput, HostNotAble, VdbgError
from vdbg_env.common.programs import Programs
from vdbg_env.common.resources import checkout, data_dir, package_dir, readers_dir
from vdbg_env.engine.context_tar import walk
from vdbg_env.image.context import FileBytes, TreeOnDisk
from vdbg_env.image.profile import OwnPackage

_PROGRAMS = Programs()
_GIT_TIMEOUT_S = 60.0
_DESCRIBED = re.compile(r"v(?P<tag>[0-9][0-9a-z.]*)-(?P<commits>[0-9]+)-(?P<commit>g[0-9a-f]+)")
# A checkout's own configuration may name programs, and the checkout may be anyone's: none of them runs, nothing is
# fetched, and the index is not written (git-config(1): core.fsmonitor, core.hooksPath, filter.*; githooks(5)).
_GIT = ("env", "GIT_ALLOW_PROTOCOL=none", "GIT_NO_LAZY_FETCH=1", "GIT_OPTIONAL_LOCKS=0", "VDBG_NONE=",
        "git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")  # fmt: skip
_OWN_SCOPES = {"local", "worktree"}

_METADATA_VERSION = re.compile(r"^Version: ([0-9][0-9A-Za-z.]*)", re.MULTILINE)  # without "+empty" and the like


def existing(text: str, flag: str) -> str:
    """Return the real path of a folder that was given with `flag`; raises BadInput when it does not exist."""
    path = Path(one_line(text, flag)).expanduser()
    if not path.is_dir():
        what = "a file, not a folder" if path.exists() else "not there"
        raise BadInput(f"{flag}: {path} is {what}", next_step="name a folder that exists")
    return str(path.resolve())


def digest(tree: TreeOnDisk) -> str:
    """Return "sha256:..." over all that a build would get of the tree; raises BadInput for what it cannot read."""
    hashed = hashlib.sha256()
    for entry in walk(tree):
        kind = "program" if entry.executable else entry.kind
        content = _content(entry.path) if entry.kind == "file" else entry.target
        hashed.update(f"{kind}\0{entry.relative}\0{content}\0".encode("utf-8", "surrogateescape"))
    return f"sha256:{hashed.hexdigest()}"


def revision(folder: str) -> str | None:
    """Return the commit of a checkout, with `-dirty` appended when files differ; None without git."""
    if _released(folder):  # a repository around an unpacked source distribution is another project's
        return None
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    changed = _changed(folder)
    if not commit or changed is None:
        return None
    return commit.strip() + ("-dirty" if changed else "")


def version(folder: str) -> str | None:
    """Return the version of a checkout by its last tag, as in 0.33.0 or 0.33.0+12.gabc1234; None without one."""
    if released := _released(folder):
        return released
    said = _git(folder, "describe", "--tags", "--long", "--match", "v[0-9]*")
    found = _DESCRIBED.fullmatch(said.strip()) if said else None
    if found is None:
        return None
    # Files that git does not know are no change of the version, as with `git describe --dirty`.
    changed = _changed(folder, "--untracked-files=no")
    local = [found["commits"], found["commit"]] if found["commits"] != "0" else []
    local += ["dirty"] if changed else []
    return found["tag"] + (f"+{'.'.join(local)}" if local else "")


def _changed(folder: str, *options: str) -> bool | None:
    """Return whether files differ from the commit, submodules by theirs alone; None where that is not known."""
    settings = _git(folder, "config", "--null", "--show-scope", "--list")
    if settings is None:
        return None
    words = settings.split("\0")
    own = {e.partition("\n")[0] for s, e in zip(words[::2], words[1::2], strict=False) if s in _OWN_SCOPES}
    # Not `-c NAME=`: the name of a filter may have a "=" too, and the last one counts here.
    without = (f"--config-env={name}=VDBG_NONE" for name in sorted(own) if name.startswith("filter."))
    said = _git(folder, *without, "status", "--porcelain", "--ignore-submodules=dirty", *options, "--", ".")
    return None if said is None else bool(said)


def _git(folder: str, *words: str) -> str | None:
    if _PROGRAMS.which("git") is None:
        return None
    try:
        ran = _PROGRAMS.run([*_GIT, "-C", folder, *words], timeout_s=_GIT_TIMEOUT_S)
    except HostNotAble:  # the revision is a label; the digest tells trees apart without it
        return None
    return ran.stdout if ran.code == 0 else None


def _released(folder: str) -> str | None:
    """Return the version in the metadata of an unpacked source distribution, None for any other folder."""
    try:
        text = (Path(folder) / "PKG-INFO").read_text(errors="replace")
    except OSError:
        return None
    found = _METADATA_VERSION.search(text)
    return found[1] if found else None


def _content(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}", next_step=f"ls -l {path}") from error


# This program as a wheel, made of the files that run now: an image's guard is the very release that built it.


_DATA: Final = ("runbooks", "images", "templates")
_DISTRIBUTION = "vdbg-env"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first date that a zip can hold
_LEFT_OUT = ("__pycache__", ".pyc")
_ALONE = ("README.md", "pyproject.toml")  # by which the readers are installed alone


@cache
def own_package() -> OwnPackage:
    """Return this program as a wheel with what it requires; the same files give the same bytes."""
    requirements, python = _requirements()
    files = _package_files()
    info = f"vdbg_env-{__version__}.dist-info"
    heads = [f"Name: {_DISTRIBUTION}", f"Version: {__version__}", f"Requires-Python: {python}"]
    heads += [f"Requires-Dist: {requirement}" for requirement in requirements]
    files[f"{info}/METADATA"] = _lines("Metadata-Version: 2.1", *heads)
    files[f"{info}/WHEEL"] = _lines(
        "Wheel-Version: 1.0", f"Generator: vdbg-env {__version__}", "Root-Is-Purelib: true", "Tag: py3-none-any"
    )
    files[f"{info}/entry_points.txt"] = _lines(
        "[console_scripts]", "vdbg-env = vdbg_env.__main__:main", "", "[vdbg_env.placements]", "slurm = vdbg_env_slurm"
    )
    record = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    files[f"{info}/RECORD"] = _lines(*record, f"{info}/RECORD,,")
    wheel = FileBytes(name=f"wheel/vdbg_env-{__version__}-py3-none-any.whl", data=_zip(files))
    return OwnPackage(wheel=wheel, requirements=requirements)


def _requirements() -> tuple[tuple[str, ...], str]:
    """Return what this program requires, without its extras, and of which Python."""
    root = checkout()
    if root is not None:
        project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
        return tuple(project["dependencies"]), project["requires-python"]
    try:
        installed = metadata.distribution(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise VdbgError(
            "the files of this program have no metadata, so what its wheel requires is not known",
            cause="they were copied, and not installed",
            next_step="pip install vdbg-env, or leave the guard out of the image: --no-guard",
        ) from None
    required = tuple(text for text in installed.requires or () if "extra ==" not in text)
    return required, str(installed.metadata["Requires-Python"])


def _package_files() -> dict[str, bytes]:
    """Return the files of the package and its data by their names in the wheel."""
    package = package_dir()
    found = {f"vdbg_env/{name}": data for name, data in _below(package).items() if not name.startswith("_data/")}
    found |= {f"gpucore/{name}": data for name, data in _below(readers_dir()).items() if name not in _ALONE}
    plug_in = package.parent / "vdbg_env_slurm"
    found |= {f"{plug_in.name}/{name}": data for name, data in _below(plug_in).items()}
    for folder in _DATA:
        found |= {f"vdbg_env/_data/{folder}/{name}": data for name, data in _below(data_dir(folder)).items()}
    return dict(sorted(found.items()))


def _below(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not any(part.endswith(_LEFT_OUT) for part in path.parts)
    }


def _zip(files: dict[str, bytes]) -> bytes:
    """Return a zip without compression, because two releases of zlib make different bytes of the same files."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system = 3  # Unix, whatever this machine is
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data)
    return written.getvalue()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _lines(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
