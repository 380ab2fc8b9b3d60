"""What an air-gapped site gets of a plan: its half without network, and the image that its other half has made."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from vdbg_env.common.errors import BadInput
from vdbg_env.image.context import ContextItem, FileBytes, FileOnDisk, TreeOnDisk
from vdbg_env.image.plan.plan import BuildPlan

SCHEMA = "vdbg-env/bundle/v1"


class Brought(BaseModel):
    """One item of the build context: its name in the archive, and how the plan counts it in its digest."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    kind: Literal["file", "tree"]
    mode: int = 0o644
    digest: str = ""


class Manifest(BaseModel):
    """The description of a bundle: the plan to build, the image that it starts from, and the context next to it.

    `layers` identifies the image by its content, whatever store it is loaded into.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, title=SCHEMA, serialize_by_alias=True)

    form: Literal["vdbg-env/bundle/v1"] = Field(default="vdbg-env/bundle/v1", alias="schema")
    made_by: str
    image: str
    layers: str
    tag: str
    plan_digest: str
    plan: dict[str, object]
    context: tuple[Brought, ...]

    def text(self) -> str:
        """Return the manifest as JSON."""
        return self.model_dump_json(indent=2) + "\n"


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A bundle at its site: the manifest, the files of its context, and the folder with its trees, unpacked."""

    manifest: Manifest
    files: Mapping[str, bytes]
    folder: str

    def plan(self, read: Callable[[TreeOnDisk], str]) -> BuildPlan:
        """Return the plan with its context, where `read` gives the digest of a tree as it was unpacked.

        Raises BadInput unless the plan's digest is that of the plan that was bundled, and for a plan on another image
        or with a network: what is in a bundle is trusted with neither.
        """
        items = tuple(self._item(item) for item in self.manifest.context)
        try:
            plan = replace(_plans().validate_python(self.manifest.plan), context=items).with_contents(read)
        except ValidationError as error:
            raise BadInput(
                f"the plan in the bundle cannot be read: {error.errors()[0]['msg']}",
                cause="another release of vdbg-env made it, or the file is damaged",
                next_step=f"use vdbg-env {self.manifest.made_by} here, or make the bundle again",
            ) from None
        if plan.digest != self.manifest.plan_digest:
            raise BadInput(
                "the plan in the bundle is not the one that was bundled: its digest differs",
                cause="the file was changed or damaged on its way",
                next_step="compare its sha256 on both sides, and copy it again",
            )
        if plan.base != self.manifest.image or plan.network != "none":
            raise BadInput(
                f"the plan in the bundle starts from {plan.base} with network {plan.network}",
                cause="`vdbg-env bundle` makes none that does not start from its own image without network",
                next_step="ask who made it; nothing of it was loaded",
            )
        return plan

    def _item(self, item: Brought) -> ContextItem:
        if item.kind == "tree":
            return TreeOnDisk(name=item.name, path=f"{self.folder}/{item.name}", digest=item.digest)
        data = self.files.get(item.name)
        if data is None:
            raise BadInput(f"the bundle lacks {item.name}", cause="it was cut off", next_step="copy it again")
        return FileBytes(name=item.name, data=data, mode=item.mode)


def describe_bundle(plan: BuildPlan, *, layers: str, tag: str, made_by: str) -> Manifest:
    """Return the manifest of a plan whose base is the image that comes with it."""
    document = plan.document()
    del document["schema"]
    return Manifest(
        made_by=made_by, image=plan.base, layers=layers, tag=tag, plan_digest=plan.digest, plan=document,
        context=tuple(_brought(item) for item in plan.context),
    )  # fmt: skip


def read_manifest(text: bytes) -> Manifest:
    """Return the manifest; raises BadInput for one of another form."""
    try:
        document = json.loads(text)
        if document.get("schema") != SCHEMA:
            raise BadInput(
                f"the bundle says {document.get('schema')!r} and not {SCHEMA!r}", next_step="update vdbg-env"
            )
        return Manifest.model_validate(document)
    except (ValueError, AttributeError) as error:
        raise BadInput(
            f"the bundle's manifest cannot be read: {error}", cause="the file is damaged", next_step="copy it again"
        ) from None


def _brought(item: ContextItem) -> Brought:
    match item:
        case FileBytes(name=name, mode=mode):
            return Brought(name=name, kind="file", mode=mode)
        case TreeOnDisk(name=name, digest=digest):
            return Brought(name=name, kind="tree", digest=digest)
        case FileOnDisk(name=name):
            raise BadInput(f"{name} cannot be bundled: only its name is in the plan's digest")


@cache
def _plans() -> TypeAdapter[BuildPlan]:
    return TypeAdapter(BuildPlan)
