"""The settings of this site, from flags, else the environment: certificate authority, proxies, index, mirror."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vdbg_env.common.errors import BadInput
from vdbg_env.image.profile import PipIndex, Site

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
