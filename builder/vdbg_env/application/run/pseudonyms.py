"""Which host names of a run get stand-ins, and the user's key that makes them the same in every run."""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Iterable, Mapping

from platformdirs import user_state_path

from vdbg_env.record.redaction.redaction import Pseudonyms

_STAND_IN = re.compile(r"(?:host|ip)-[0-9a-f]{8}")
# Where launchers put the names of machines: the shell, Slurm, torchrun, Kubernetes manifests.
_VARIABLES = ("HOSTNAME", "HOST", "SLURMD_NODENAME", "SLURM_LAUNCH_NODE_IPADDR", "MASTER_ADDR", "NODE_NAME")
_NOBODY = {"", "localhost"}


def pseudonyms(environment: Mapping[str, str], further: Iterable[str] = ()) -> Pseudonyms:
    """Return stand-ins for this machine's name, for the hosts an environment names, and for `further` names.

    A run that has its stand-ins already must not be given stand-ins of stand-ins, so those are no names.
    """
    known = {socket.gethostname(), *(environment.get(name, "") for name in _VARIABLES), *further}
    names = {part for name in known for part in (name, name.partition(".")[0])} if known else set()
    return Pseudonyms(_key(), tuple(sorted(name for name in names - _NOBODY if _is_name(name))))


def holds_stand_in(text: str) -> bool:
    """Whether a recorded text has a stand-in where a name or an address was."""
    return _STAND_IN.search(text) is not None


def _is_name(text: str) -> bool:
    return not _STAND_IN.fullmatch(text) and any(letter.isalpha() for letter in text)  # an address has its own stand-in


def _key() -> bytes:
    """Return this user's key, made at first use: beside a run it would undo what it is for."""
    path = user_state_path("vdbg-env", appauthor=False) / "pseudonym.key"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_bytes()
    with os.fdopen(descriptor, "wb") as file:
        key = secrets.token_bytes(32)
        file.write(key)
    return key
