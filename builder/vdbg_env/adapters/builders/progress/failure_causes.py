"""Explain why a build step failed, from its exit status and last lines, and what to type."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_KILLED = re.compile(
    r"Killed signal terminated program|\bsignal 9\b|^Killed\b|: Killed$|(ld|nvlink|cicc|ptxas) died due to signal 9"
    r"|virtual memory exhausted|Cannot allocate memory|std::bad_alloc",
    re.MULTILINE,
)
_DISK = re.compile(r"No space left on device|Disk quota exceeded|ENOSPC")
_CERTIFICATE = re.compile(
    r"certificate verify failed|self[- ]signed certificate|unknown authority|SSL certificate problem"
    r"|certificate verification failed",
    re.IGNORECASE,
)
_NO_NAME = re.compile(
    r"Temporary failure (in name resolution|resolving)|Could not resolve|Name or service not known"
    r"|Failed to establish a new connection|Network is unreachable|no such host|Could not connect to",
)
_NO_BASE = re.compile(
    r"pull access denied|manifest unknown|repository does not exist|failed to (resolve|do request|fetch)"
    r"|not found: manifest|failed to load cache key|failed to authorize"
)
_NOT_ROOT = re.compile(r"/var/(lib|cache)/(apt|dpkg)/\S+ .*Permission denied|are you root\?")
_NO_COMMAND = re.compile(r"([\w./+-]+): (?:command )?not found")


@dataclass(frozen=True, kw_only=True)
class _Evidence:
    title: str
    code: int | None
    message: str
    text: str
    jobs: int | None


_Answer = tuple[str, str | None]
_Rule = Callable[[_Evidence], _Answer | None]


def explain_failure(
    *, title: str, code: int | None, message: str, tail: Sequence[str], jobs: int | None
) -> tuple[str, str | None]:
    """Return the cause in one sentence and what to type, from a step's title, exit status, error and last lines.

    `jobs` is the number of compilers the plan ran at once, if it is known. The first rule that knows the failure is
    used, else the engine's own message.
    """
    evidence = _Evidence(title=title, code=code, message=message, text="\n".join([message, *tail]), jobs=jobs)
    for rule in _RULES:
        if answer := rule(evidence):
            return answer
    return _own_words(evidence)


def engine_gone(reason: str) -> tuple[str, str]:
    """Return the cause and what to type for a build whose engine went away in the middle of it."""
    return (
        f"the engine went away ({_short(reason)[:200]}): it was stopped, crashed or was killed",
        "docker version, to see whether it is back, then build again: finished steps are in the cache",
    )


def _disk_full(e: _Evidence) -> _Answer | None:
    if not _DISK.search(e.text):
        return None
    return (
        "the disk the engine keeps its images on is full",
        "docker system df, free some space there, then build again: finished steps are in the cache",
    )


def _out_of_memory(e: _Evidence) -> _Answer | None:
    if e.code != 137 and not _KILLED.search(e.text):
        return None
    what = "exit status 137 = SIGKILL" if e.code == 137 else "a compiler was killed or got no memory"
    if e.jobs is not None and e.jobs > 1:
        return f"{what}: {e.jobs} compilers at once needed more memory than there is", (
            f"the same command with --jobs {max(1, e.jobs // 2)}"
        )
    return f"{what}: the step needed more memory than there is", "build on a machine with more memory, or add swap"


def _certificate(e: _Evidence) -> _Answer | None:
    if not _CERTIFICATE.search(e.text):
        return None
    return (
        "a server showed a certificate the image does not trust; a proxy that inspects TLS does that",
        "the same command with --ca-bundle FILE, the certificate bundle of your organisation",
    )


def _no_base(e: _Evidence) -> _Answer | None:
    pulling = e.code is None and e.title.startswith(("FROM ", "[internal] load metadata for "))
    if not (pulling or _NO_BASE.search(e.message)):
        return None
    return (
        f"the base image is neither on this engine nor available from its registry ({_short(e.message)})",
        "docker pull the base image and look at the message, or give one you have with --base",
    )


def _no_network(e: _Evidence) -> _Answer | None:
    if not _NO_NAME.search(e.text):
        return None
    return (
        "the step reached no network or no name server",
        "check the proxy and mirror settings; --network host lets the build use the network of this machine",
    )


def _not_root(e: _Evidence) -> _Answer | None:
    if not _NOT_ROOT.search(e.text):
        return None
    return (
        "the base image has a user who is not root, and packages cannot be installed",
        "printf 'FROM BASE\\nUSER root\\n' | docker build --tag base-as-root -, then --base base-as-root",
    )


def _no_command(e: _Evidence) -> _Answer | None:
    if e.code != 127:
        return None
    found = _NO_COMMAND.search(e.text)
    program = f" ({found[1]})" if found else ""
    return f"exit status 127: the step called a program{program} that the image does not have", None


def _own_words(e: _Evidence) -> _Answer:
    if e.code is not None:
        return f"its command ended with exit status {e.code}; the last lines it printed say more", None
    return _short(e.message) or "the engine gave no reason", None


def _short(message: str) -> str:
    """Return an engine's message on one line, without the whole script that BuildKit repeats before its reason."""
    _, _, reason = message.rpartition("executor failed running [")
    _, bracket, behind = reason.rpartition("]: ")
    return " ".join((behind if bracket else message).split())[:300]


_RULES: tuple[_Rule, ...] = (_disk_full, _out_of_memory, _certificate, _no_base, _no_network, _not_root, _no_command)
