"""What a build is planned from on this machine: profiles, source trees, certificates, proxies, indexes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from vdbg_env.build.builder import SourceTrees
from vdbg_env.common import yaml_source
from vdbg_env.common.errors import BadInput
from vdbg_env.common.resources import data_dir
from vdbg_env.image.context import FileBytes
from vdbg_env.image.knowledge import ImageLibrary, read_knowledge
from vdbg_env.image.plan import BuildPlan
from vdbg_env.image.planner import plan
from vdbg_env.image.profile import BuildRequest, HostGpu, LocalTree, PipIndex, ProfileFile, Site, Source, parse_source


def plan_build(request: BuildRequest, library: ImageLibrary, *, gpu: HostGpu | None, trees: SourceTrees) -> BuildPlan:
    """Plan a request, local trees counted by their content; raises BadInput for what cannot be built."""
    return plan(library.spec(request.profile), request, library, gpu=gpu).with_contents(trees.digest)


def read_source(text: str, trees: SourceTrees) -> Source:
    """Read `--source`, with the commit of a local checkout; raises BadInput when there is no such source."""
    source = parse_source(text)
    if not isinstance(source, LocalTree):
        return source
    path = trees.existing(source.path, "--source")
    return LocalTree(path=path, revision=trees.revision(path), version=trees.version(path))


def default_tag(plan: BuildPlan, request: BuildRequest) -> str:
    """Return the name of an image by profile and kind of debug information; a second build replaces it."""
    return f"vdbg/{plan.profile}:{request.debug}"


# Read the shipped profiles, knowledge and templates, and the user's own, into one value for the planner.


def read_image_library(user_folder: Path | None = None, extra: ProfileFile | None = None) -> ImageLibrary:
    """Read what ships with the program and the user's own `user_folder`, and add the one profile `extra`.

    The user's profiles override shipped ones of the same name; so do rows in the `knowledge/` folder there. Raises
    BadInput when a file cannot be read.
    """
    shipped = data_dir("images")
    profiles = dict(_profiles(shipped, shipped_with_us=True))
    knowledge = sorted((shipped / "knowledge").glob("*.yaml"))
    if user_folder is not None and user_folder.is_dir():
        profiles.update(_profiles(user_folder, shipped_with_us=False))
        knowledge += sorted((user_folder / "knowledge").glob("*.yaml"))
    if extra is not None:
        profiles[profile_name(extra)] = extra
    templates = data_dir("templates")
    return ImageLibrary(
        profiles=profiles,
        knowledge=read_knowledge((str(path), _read(path)) for path in knowledge),
        step_templates={path.name: _read(path).decode() for path in sorted((templates / "steps").glob("*.j2"))},
        entrypoint=_read(templates / "entrypoint.sh"),
        launcher=_read(templates / "vdbg-env.sh"),
        object_cache=_read(templates / "object-cache.sh"),
        bundled={folder.name: tuple(_bundled(folder)) for folder in sorted(shipped.iterdir()) if _is_project(folder)},
    )


def open_profile(profile: str, user_folder: Path) -> tuple[str, ImageLibrary]:
    """Return a profile's name and the library that contains it; `profile` is a name, or the path of a YAML file."""
    if "/" not in profile and not profile.endswith((".yaml", ".yml")):
        return profile, read_image_library(user_folder)
    path = Path(profile).expanduser()
    file = ProfileFile(file=str(path), text=_read(path, at_most=yaml_source.MAX_BYTES + 1))
    return profile_name(file), read_image_library(user_folder, file)


def profile_name(file: ProfileFile) -> str:
    """Return the name in a profile, or that of its file when there is none in it; raises BadDocument."""
    value = file.source.value
    name = value.get("name") if isinstance(value, dict) else None
    return name if isinstance(name, str) else Path(file.file).stem


def _profiles(folder: Path, *, shipped_with_us: bool) -> Iterator[tuple[str, ProfileFile]]:
    for path in sorted(folder.glob("*.yaml")):
        yield path.stem, ProfileFile(file=str(path), text=_read(path), shipped=shipped_with_us)


def _is_project(folder: Path) -> bool:
    return (folder / "CMakeLists.txt").is_file()


def _bundled(folder: Path) -> Iterator[FileBytes]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield FileBytes(name=path.relative_to(folder).as_posix(), data=_read(path))


def _read(path: Path, *, at_most: int = -1) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(at_most)  # the user may name a file without end, such as a device
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read: {error.strerror}", next_step="check the path and its permissions"
        ) from None


# The settings of this site, from flags, else the environment: certificate authority, proxies, index, mirror.


_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")


@dataclass(frozen=True, kw_only=True)
class SiteFlags:
    """The flags about the site; None and empty where they are not given."""

    ca_bundle: Path | None = None
    keep_ca: bool = False
    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    trusted_hosts: tuple[str, ...] = ()
    apt_mirror: str | None = None


def read_site(flags: SiteFlags, environment: Mapping[str, str]) -> tuple[Site, tuple[str, ...]]:
    """Return the site, and a note for each thing that the environment decided.

    The environment counts because a machine that needs PIP_CERT or HTTPS_PROXY needs them in the build too.
    Folders of this machine (`file:` indexes) do not exist in an image and are left out, with a note. Raises BadInput
    for a file without certificates or one that cannot be read.
    """
    notes: list[str] = []
    ca = flags.ca_bundle or _from_environment(environment, ("VDBG_CA_BUNDLE", "PIP_CERT", "SSL_CERT_FILE"), notes)
    index = flags.index_url or environment.get("PIP_INDEX_URL")
    if index and index.startswith("file:"):
        notes.append(f"PIP_INDEX_URL={index} is a folder of this machine and not used in the image")
        index = None
    extra = flags.extra_index_urls or tuple(environment.get("PIP_EXTRA_INDEX_URL", "").split())
    if any(url.startswith("file:") for url in extra):
        notes.append("folders of this machine in PIP_EXTRA_INDEX_URL are not used in the image")
    site = Site(
        ca_bundle=None if ca is None else _certificates(Path(ca)),
        keep_ca=flags.keep_ca,
        proxies=_proxies(environment),
        pip=PipIndex(
            index_url=index,
            extra_index_urls=tuple(url for url in extra if not url.startswith("file:")),
            trusted_hosts=flags.trusted_hosts or tuple(environment.get("PIP_TRUSTED_HOST", "").split()),
        ),
        apt_mirror=flags.apt_mirror or environment.get("VDBG_APT_MIRROR"),
    )
    return site, tuple(notes)


def _from_environment(environment: Mapping[str, str], names: tuple[str, ...], notes: list[str]) -> Path | None:
    name = next((name for name in names if environment.get(name)), None)
    if name is None:
        return None
    notes.append(f"certificates from {name}={environment[name]}; --ca-bundle names others")
    return Path(environment[name])


def _certificates(path: Path) -> bytes:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BadInput(
            f"the certificates in {path} cannot be read: {error.strerror}", next_step=f"ls -l {path}"
        ) from None
    if b"-----BEGIN CERTIFICATE-----" not in text:
        raise BadInput(
            f"{path} has no certificate in it",
            cause="a certificate in binary (DER) form, or another file",
            next_step=f"openssl x509 -inform der -in {path} -out ca.pem",
        )
    return text


def _proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the proxies by both of their spellings, since curl reads one and others the other."""
    found: dict[str, str] = {}
    for name in _PROXIES:
        value = environment.get(name) or environment.get(name.upper())
        if value:
            found |= {name: value, name.upper(): value}
    return found
