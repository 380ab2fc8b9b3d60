"""What a command needs on several ranks: vLLM's own words, and the lines that tell cause from victim."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vdbg_env.common.errors import BadInput
from vdbg_env.evidence.system import ranks
from vdbg_env.runbook.invocation import Invocation
from vdbg_env.runbook.model import Matcher
from vdbg_env.runbook.workload.recognise import recognise

NUMBER = "${{ rank.number }}"
LOCAL = "${{ rank.local }}"  # on its node
_PORTS = range(20000, 30000)  # below those that systems give to clients
ALARM = "../hang"  # in the attempt's folder
MATCHERS = (
    Matcher(name=ranks.CAUSE, pattern=ranks.CAUSE_PATTERN),
    Matcher(name=ranks.VICTIM, pattern=ranks.VICTIM_PATTERN),
)
# A command that has one of these spreads itself: its words are left as they are.
_SPREAD = ("--nnodes", "--node-rank", "--headless", "--data-parallel-start-rank", "--data-parallel-rank")


@dataclass(frozen=True, kw_only=True)
class RankedInvocation:
    """What the first rank runs, and what each of the others does; `${{ rank.* }}` is still in both."""

    first: Invocation
    others: Invocation


def ranked(invocation: Invocation, *, ranks: int, nodes: int, master: str, port: int) -> RankedInvocation:
    """Return an invocation for several ranks: requests are sent at the first, vLLM gets its words for `nodes`.

    Every other command gets the variables by which torch.distributed finds its ranks (`env://`). `master` is where the
    first rank runs, and `port` what it may listen at. Raises BadInput for words that contradict the placement.
    """
    marked = replace(invocation, matchers=(*invocation.matchers, *MATCHERS), alarm=ALARM)
    others = replace(marked, driver=None, listens="")
    if invocation.driver is not None:
        # Only the first rank says what it serves: silence of the others is no hang, and the alarm is heard by all.
        others = replace(
            others, watch=invocation.watch.model_copy(update={"output_idle_s": None, "gpu_pinned_s": None})
        )
    first = marked
    words = _words(invocation.argv)
    if recognise(invocation.base_argv).kind != "vllm" or not recognise(invocation.base_argv).serves:
        found = {
            **invocation.hooks,
            "RANK": NUMBER,
            "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": LOCAL,
            "MASTER_ADDR": master,
            "MASTER_PORT": str(port),
        }
        return RankedInvocation(first=replace(first, hooks=found), others=replace(others, hooks=found))
    given = _value(words, "--nnodes")
    if given is not None and given != str(ranks):
        raise BadInput(
            f"the command has --nnodes {given}, and the placement {ranks} ranks on {nodes} nodes",
            cause="vLLM runs one rank of its --nnodes on each task",
            next_step=f"leave out --nnodes, or start {given} ranks",
        )
    if any(name in words for name in _SPREAD):
        return RankedInvocation(first=first, others=others)
    spread = ("--nnodes", str(ranks), "--node-rank", NUMBER, "--master-addr", master)
    return RankedInvocation(
        first=replace(first, argv=(*first.argv, *spread)),
        others=replace(others, argv=(*others.argv, *spread, "--headless")),
    )


def master_port(attempt: str) -> int:
    """Return a port for the ranks of an attempt to meet at: the same one for an engine that takes the attempt over."""
    return _PORTS[int(hashlib.sha256(attempt.encode("utf-8", "surrogateescape")).hexdigest()[:8], 16) % len(_PORTS)]


def _words(argv: Sequence[str]) -> dict[str, str | None]:
    """Return the flags of a command line with what follows each of them."""
    found: dict[str, str | None] = {}
    for index, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            found[name.replace("_", "-")] = value if equals else next(iter(argv[index + 1 : index + 2]), None)
    return found


def _value(words: dict[str, str | None], flag: str) -> str | None:
    return words.get(flag)
