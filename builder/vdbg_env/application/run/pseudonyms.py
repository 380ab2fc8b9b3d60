"""Which host names of a run get pseudonyms, by the user's key, which makes them the same in every run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from vdbg_env.application.ports.this_host import ThisHost
from vdbg_env.record.redaction.redaction import Pseudonyms

_PSEUDONYM = re.compile(r"(?:host|ip)-[0-9a-f]{8}")
# Where launchers put the names of machines: the shell, Slurm, torchrun, Kubernetes manifests.
_VARIABLES = ("HOSTNAME", "HOST", "SLURMD_NODENAME", "SLURM_LAUNCH_NODE_IPADDR", "MASTER_ADDR", "NODE_NAME")
_NOT_NAMES = {"", "localhost"}


def pseudonyms(host: ThisHost, environment: Mapping[str, str], further: Iterable[str] = ()) -> Pseudonyms:
    """Return pseudonyms for this machine's name, for the hosts an environment names, and for `further` names.

    A name that is a pseudonym already is left out: a run must not get pseudonyms of pseudonyms.
    """
    known = {host.name(), *(environment.get(name, "") for name in _VARIABLES), *further}
    names = {part for name in known for part in (name, name.partition(".")[0])} - _NOT_NAMES
    return Pseudonyms(host.pseudonym_key(), tuple(sorted(name for name in names if _is_name(name))))


def has_pseudonym(text: str) -> bool:
    """Whether a recorded text has a pseudonym where a name or an address was."""
    return _PSEUDONYM.search(text) is not None


def _is_name(text: str) -> bool:
    return not _PSEUDONYM.fullmatch(text) and any(letter.isalpha() for letter in text)  # addresses are found by form
