"""Where the steps of a run are started: this machine, or containers of an image, and what may be asked there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from vdbg_env.application.image.run import RunRequest
from vdbg_env.common.errors import BadInput
from vdbg_env.image.container.mount import Mount
from vdbg_env.image.container.step_container import StepContainer, StepImage
from vdbg_env.image.plan.plan import LABEL_PROOF
from vdbg_env.record.redaction.redaction import Pseudonyms, Redactor
from vdbg_env.runbook.state import Facts

if TYPE_CHECKING:
    from vdbg_env.application.ports import BinarySource, ProgramRunner, SourceText, StepRunner
    from vdbg_env.record.run_directory import RunHead

_LABEL_CUDA = "dev.vdbg-env.cuda"
_LABEL_SOURCE = "org.opencontainers.image.source"
_VLLM = "pkg:pypi/vllm@"
_RECORD = TypeAdapter(StepContainer)


@dataclass(frozen=True, kw_only=True)
class ContainerRequest:
    """Containers as asked for; `image` and GPU of `run` may still be left to be found, as for `vdbg-env run`."""

    run: RunRequest
    mounts: tuple[Mount, ...] = ()
    user: str | None = None
    memory: int | None = None
    folder: str | None = None


@dataclass(frozen=True, kw_only=True)
class StepPlace:
    """Where a run's steps are started; `image` and `container` are None for this machine.

    `programs` and `binaries` are those at hand there, and `reading` gives programs that may also read the folder of a
    run; `sources` finds the text of source lines there; `environment` is what a workload inherits there, `data_dir` the
    shipped runbooks as it sees them. `runner` makes what starts the steps of a run, given the run's folder, the values
    that must not be kept and the stand-ins where there are any; `close` takes away what a helper program that was cut
    short has left.
    """

    programs: ProgramRunner
    reading: Callable[[Path], ProgramRunner]
    binaries: BinarySource
    environment: Mapping[str, str]
    data_dir: str
    sources: SourceText
    runner: Callable[[Path, tuple[str, ...], Pseudonyms | None], StepRunner]
    close: Callable[[], None]
    container: StepContainer | None = None
    image: StepImage | None = None

    @property
    def in_words(self) -> Mapping[str, str]:
        """The place as a report's environment shows it; nothing for this machine."""
        if self.image is None:
            return {}
        return {"steps run in": f"containers of {self.image.name}", "image": self.image.digest or self.image.image_id}


def with_image_facts(facts: Facts, image: StepImage | None) -> Facts:
    """Return the facts with what the labels that `vdbg-env build` wrote say of an image that could not be asked."""
    if image is None:
        return facts
    labels = dict(image.labels)
    proof = labels.get(LABEL_PROOF)
    source = labels.get(_LABEL_SOURCE, "")
    return replace(
        facts,
        on="docker",
        cuda=facts.cuda or labels.get(_LABEL_CUDA),
        vllm=facts.vllm or (source.removeprefix(_VLLM) if source.startswith(_VLLM) else None),
        lineinfo=facts.lineinfo if proof is None else proof.startswith("full"),
    )


def container_record(place: StepPlace, redactor: Redactor) -> dict[str, Any]:
    """Return what `run.json` keeps of a place, without secrets: enough to go on in the same one; empty for here."""
    if place.container is None or place.image is None:
        return {}
    settings = place.container.settings
    env = redactor.env(dict(settings.env))
    kept = replace(place.container, settings=replace(settings, env=tuple((n, str(v)) for n, v in env.items())))
    return {
        "image": {"name": place.image.name, "id": place.image.image_id, "digest": place.image.digest},
        "container": _RECORD.dump_python(kept, mode="json", exclude_defaults=True),
    }


def resumed_container(head: RunHead, asked: ContainerRequest | None) -> StepContainer | None:
    """Return the containers a run was begun in, of the image it was begun with; None when it was begun here.

    Of what is asked for anew, only the values of variables count, for the record keeps no secret. Raises BadInput when
    one is missing, or when another place is asked for.
    """
    if not head.container:
        if asked:
            raise BadInput(
                f"the steps of run {head.run!r} ran on this machine, and not in containers",
                next_step="leave out --on and --image, or begin a new run without --resume",
            )
        return None
    recorded = _RECORD.validate_python(dict(head.container))
    given = dict(asked.run.settings.env) if asked else {}
    if asked and asked.run.image not in {None, head.image.get("name"), head.image.get("id")}:
        raise BadInput(
            f"run {head.run!r} was begun in containers of {head.image.get('name')}, not of {asked.run.image}",
            next_step="leave out --image, or begin a new run without --resume",
        )
    env = tuple((name, given.get(name, value)) for name, value in recorded.settings.env)
    for name, value in env:
        if "[redacted" in value:
            raise BadInput(
                f"the record of run {head.run!r} holds no secrets, and its variable {name} had one",
                next_step=f"give it again, from your own environment: --env {name}",
            )
    settings = replace(recorded.settings, image=str(head.image["id"]), env=env)
    return replace(recorded, settings=settings)
