"""Small build orders for tests of engines: one list of commands as a plan and as the Dockerfile of the same plan."""

import os
from collections.abc import Mapping

from vdbg_env.build.builder import BuildEvent, BuildFailed, BuildOrder, Built, OutputLine
from vdbg_env.image.context import ROOT, BuildContext, FileBytes
from vdbg_env.image.plan import LABEL_DIGEST, BuildPlan, CommandStep, CopyStep
from vdbg_env.image.profile import Network

BASE = "vdbg/debian-trixie:local"
OF_THIS_PROCESS = ("dev.vdbg-env.test", str(os.getpid()))  # tells these images from those of others on a shared engine


def small_order(
    *commands: str,
    files: Mapping[str, bytes] | None = None,
    jobs: int | None = None,
    needs: tuple[str, ...] = (),
    base: str = BASE,
    no_cache: bool = False,
    network: Network = "default",
) -> BuildOrder:
    """Return an order that copies `files` to the root and runs each command as a step of its own."""
    items = tuple(FileBytes(name=f"files/{name}", data=data) for name, data in (files or {}).items())
    copy = (CopyStep(id="copy", title="copy the files", source="files", target="."),) if items else ()
    runs = tuple(
        CommandStep(id=f"run-{n}", title=f"run {n}", commands=(c,), needs=needs) for n, c in enumerate(commands, 1)
    )
    plan = BuildPlan(
        profile="small", base=base, base_path="/usr/local/bin:/usr/bin:/bin", platform=None, network=network,
        args=(), env=(), labels=(("dev.vdbg-env.profile", "small"),), steps=(*copy, *runs), artifacts=("lib",),
        entrypoint=(), command=("/bin/sh",), context=items,
    )  # fmt: skip
    dockerfile = "\n".join(
        [
            f"FROM {base}",
            f'LABEL "{LABEL_DIGEST}"="{plan.digest}" "{OF_THIS_PROCESS[0]}"="{OF_THIS_PROCESS[1]}"',
            f"ENV VDBG_ROOT={ROOT}",
            f"WORKDIR {ROOT}",
            *(["COPY files ./"] if items else []),
            *(f"RUN {command}" for command in commands),
            "",
        ]
    )
    context = BuildContext(items=(*items, FileBytes(name="Dockerfile", data=dockerfile.encode())))
    return BuildOrder(plan=plan, context=context, jobs=jobs, no_cache=no_cache)


def built(events: list[BuildEvent]) -> Built:
    """Return the closing event of a build that must have gone well."""
    assert isinstance(events[-1], Built), events[-1]
    return events[-1]


def failed(events: list[BuildEvent]) -> BuildFailed:
    """Return the closing event of a build that must have failed."""
    assert isinstance(events[-1], BuildFailed), events[-1]
    return events[-1]


def output(events: list[BuildEvent]) -> list[str]:
    return [event.text for event in events if isinstance(event, OutputLine)]
