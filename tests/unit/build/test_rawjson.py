import base64
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from vdbg_env.build.progress import Progress, RawJsonReader

VERTEX = {"digest": "sha256:aa", "name": "[1/2] RUN make", "started": "2026-11-21T07:33:40.371218204Z"}
LOG = {"logs": [{"vertex": "sha256:aa", "stream": 2, "data": base64.b64encode(b"caf\xc3\xa9\n").decode()}]}


def read(data: bytes, size: int) -> list[Progress | str]:
    reader = RawJsonReader()
    found = [item for at in range(0, len(data), size) for item in reader.feed(data[at : at + size])]
    return [*found, *reader.feed(b"", final=True)]


@given(size=st.integers(1, 200), indent=st.sampled_from([None, 2]))
def test_documents_are_read_whatever_the_pieces_and_the_layout(size: int, indent: int | None) -> None:
    text = "\n".join(json.dumps(d, indent=indent) for d in ({"vertexes": [VERTEX]}, LOG)) + "\n"
    first, second = read(text.encode(), size)
    assert isinstance(first, Progress)
    assert first.vertexes[0].started == 1795246420.371218
    assert isinstance(second, Progress)
    assert (second.logs[0].stream, second.logs[0].data) == ("stderr", b"caf\xc3\xa9\n")


def test_text_between_documents_comes_back_as_lines() -> None:
    data = b"WARNING: no output\n" + json.dumps(LOG).encode() + b"\nERROR: failed to solve: exit code: 1\n"
    found = read(data, 7)
    assert [item for item in found if isinstance(item, str)] == [
        "WARNING: no output",
        "ERROR: failed to solve: exit code: 1",
    ]
    assert len(found) == 3


def test_a_document_cut_off_by_a_killed_buildx_is_text_and_the_rest_is_still_read() -> None:
    found = read(b'{"vertexes": [{"digest": "sha256:aa"\n' + json.dumps(LOG).encode(), 1000)
    assert found[0] == '{"vertexes": [{"digest": "sha256:aa"'
    assert isinstance(found[1], Progress)


@given(st.binary(max_size=300), st.integers(1, 50))
def test_no_bytes_stop_the_reader(data: bytes, size: int) -> None:
    read(data, size)


@settings(max_examples=30)
@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda x: st.lists(x, max_size=3), max_leaves=5))
def test_fields_of_another_type_are_passed_over(value: object) -> None:
    document = {"vertexes": [{"digest": value, "started": value}], "logs": [{"data": value, "stream": value}]}
    (found,) = read(json.dumps(document).encode(), 64)
    assert isinstance(found, Progress)
