"""The containers of a run: as requested, as recorded, and again when the run is resumed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from vdbg_env.application.image.run import RunRequest, settled
from vdbg_env.application.ports.containers import ContainerRunner
from vdbg_env.application.ports.core_dumps import DumpStore
from vdbg_env.application.ports.places import StepPlace
from vdbg_env.common.errors import BadInput
from vdbg_env.image.plan import LABEL_PROOF
from vdbg_env.image.settings import Mount, StepContainer, StepImage
from vdbg_env.record.redaction.redaction import Redactor
from vdbg_env.record.run_directory import part_of
from vdbg_env.runbook.state import Facts

if TYPE_CHECKING:
    from vdbg_env.image.settings import DumpVolume
    from vdbg_env.record.run_directory import RunHead

_LABEL_CUDA = "dev.vdbg-env.cuda"
_LABEL_SOURCE = "org.opencontainers.image.source"
_VLLM = "pkg:pypi/vllm@"
_RECORD = TypeAdapter(StepContainer)


@dataclass(frozen=True, kw_only=True)
class ContainerRequest:
    """The containers requested; image and GPU of `run` may still have to be found, as for `vdbg-env run`."""

    run: RunRequest
    mounts: tuple[Mount, ...] = ()
    user: str | None = None
    memory: int | None = None
    folder: str | None = None


def step_container(
    request: ContainerRequest,
    containers: ContainerRunner,
    dump_store: Callable[[DumpVolume], DumpStore],
    notice: Callable[[str], None],
) -> StepContainer:
    """Return what a run's containers have in common; image and GPU are found where the request names none.

    Raises BadInput where there is no image, HostNotAble where Docker does not respond or the dump volume is too full.
    """
    watched = request.run.settings.dumps if request.run.dump_quota is not None else None
    return StepContainer(
        settings=settled(request.run, containers, dump_store(watched) if watched else None, notice, record=True),
        mounts=request.mounts,
        user=request.user,
        memory=request.memory,
        folder=request.folder,
    )


def with_image_facts(facts: Facts, image: StepImage | None) -> Facts:
    """Return the facts completed by the labels that `vdbg-env build` gave an image."""
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
    """Return what `run.json` keeps of a place, without secrets, enough to continue in the same one; empty for here."""
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

    Of a new request only the values of variables count: the record keeps no secret. Raises BadInput when one is
    missing, or when another place is requested.
    """
    if not head.container:
        if asked:
            raise BadInput(
                f"the steps of run {head.run!r} ran on this machine, and not in containers",
                next_step="leave out --on and --image, or begin a new run without --resume",
            )
        return None
    recorded = part_of(head, "container", StepContainer)
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
    settings = replace(recorded.settings, image=str(head.image.get("id", "")), env=env)
    return replace(recorded, settings=settings)
