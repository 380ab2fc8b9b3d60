"""Documents are written by their types, and their published schemas are made from the same types.

Those of the room `crash` are kept by hand: `tests/unit/crash/test_schemas.py`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import jsonschema
import pytest

from tests.support.document_schema import json_schema
from tests.support.golden import assert_golden
from vdbg_env.report import as_json, runbooks
from vdbg_env.report.codec import document as doc
from vdbg_env.report.codec.document import ABSENT, Document, Hex, field
from vdbg_env.report.lineinfo import lines_built, pack_json
from vdbg_env.run import again, capture, crash_groups, doctor, guard, history

PUBLISHED: dict[str, tuple[type[Document], ...]] = {
    "capture-v1": (capture.Captured,),
    "doctor-v1": (doctor.DoctorDocument,),
    "guard-v1": (guard.GuardDocument,),
    "lines-v1": (pack_json.PacksDocument, pack_json.PackedDocument),
    "lines-build-v1": (lines_built.LinesDocument,),
    "run-head-v1": (history.RunHeadDocument,),
    "run-v1": (as_json.Run,),
    "runbook-plan-v1": (runbooks.PlanDocument,),
    "runbooks-lint-v1": (runbooks.Lint,),
    "runbooks-list-v1": (runbooks.RunbookList,),
    "runbooks-show-v1": (runbooks.Shown,),
    "runs-diff-v1": (history.DiffDocument,),
    "runs-export-v1": (again.ExportDocument,),
    "runs-prune-v1": (history.PrunedRunsDocument,),
    "runs-v1": (history.RunsDocument, crash_groups.GroupsDocument),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_schema_is_that_of_the_types(name: str) -> None:
    schema = json_schema(*PUBLISHED[name])
    jsonschema.Draft202012Validator.check_schema(schema)
    assert_golden(f"../../docs/schemas/{name}.schema.json", json.dumps(schema, indent=2) + "\n")


def documents(one: type[Document]) -> Iterator[type[Document]]:
    yield one
    for hint, _ in doc.fields(one).values():
        yield from (inner for part in parts(hint) for inner in documents(part))


def parts(hint: Any) -> Iterator[type[Document]]:
    if isinstance(hint, type) and issubclass(hint, Document):
        yield hint
    yield from (found for argument in get_args(hint) for found in parts(argument))


ALL = sorted({d for roots in PUBLISHED.values() for root in roots for d in documents(root)}, key=str)


@pytest.mark.parametrize("document", ALL, ids=lambda d: f"{d.__module__}.{d.__name__}")
def test_every_field_without_a_source_is_an_attribute_of_the_value(document: type[Document]) -> None:
    of = document.of
    annotated = {name for base in (of.__mro__ if of else ()) for name in getattr(base, "__annotations__", {})}
    for name, (hint, spec) in doc.fields(document).items() if of else ():
        if spec.source is None and name != "schema":
            attribute = (spec.path or name).partition(".")[0]
            assert attribute in {*dir(of), *annotated}, f"{of} has no {attribute}"
        assert hint is not None


@dataclass(frozen=True)
class Point:
    pc: int
    words: tuple[str, ...] = ()
    name: str | None = None
    inner: "Point | None" = None


class Name(Document, of=Point):
    name: str | None


class PointDocument(Document, of=Point):
    """A point."""

    schema: Literal["point/v1"]
    address: Hex = field("pc", doc="Where.")
    class_: str = field(lambda point, context: f"{context}{point.pc}")
    naming: Name = field(lambda point, _: point, inline=True)
    words: list[str]
    inner: Name | None
    extra: int = field(lambda point, _: ABSENT if point.pc else 1, may_be_absent=True)


def test_a_value_is_written_by_its_document() -> None:
    point = Point(255, ("a",), inner=Point(0, name="ü\udc80"))
    assert json.loads(doc.render(point, PointDocument, "c")) == {
        "schema": "point/v1", "address": "0xff", "class": "c255", "name": None, "words": ["a"],
        "inner": {"name": "ü\udc80"},
    }  # fmt: skip
    assert doc.plain(Point(0), PointDocument, "c")["extra"] == 1
    assert "ü\\udc80" in doc.render(point, PointDocument), "no name of a file breaks the output"


def test_a_schema_is_made_of_the_same_type() -> None:
    schema = json_schema(PointDocument)
    assert (schema["$id"], schema["description"]) == ("point/v1", "A point.")
    assert schema["required"] == ["schema", "address", "class", "name", "words", "inner"]
    assert schema["properties"]["address"] == {"type": "string", "pattern": "^0x[0-9a-f]+$", "description": "Where."}
    for point, right in ((Point(1), True), (Point(1, name=3), False)):  # type: ignore[arg-type]
        written = doc.plain(point, PointDocument, "")
        assert jsonschema.Draft202012Validator(schema).is_valid(written) is right
