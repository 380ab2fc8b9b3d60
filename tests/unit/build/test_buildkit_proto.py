import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucore.errors import UnreadableBinary
from vdbg_env.build.progress import read_status_response

# As Engine 20.10 sent it while it built `RUN echo one; echo two >&2`.
RECORDED_LOG = (
    "Gl8KR3NoYTI1NjphODFkZjcyYmJmMzQ2ODI4ZDNlNzlmNzk3NzkzNzAyYzY1YjY0NzMxYzU0ZjBmYjUyZThhNjI5NjQ2MzdkYTZhEgwI2ZKF2AYQ"
    "5LLukQMYAiIEdHdvCg=="
)
RECORDED_VERTEX = (
    "CosBCkdzaGEyNTY6ODVjODA4NjRmZDAwM2MyMWYyMjRiMmU4OTI0OWE3M2NmYTdmNDlmZWQ2MjhhNDc2MDYwODg3MmU1NTM2ZWQzOBokW2ludGVy"
    "bmFsXSBsb2FkIHJlbW90ZSBidWlsZCBjb250ZXh0KgwI2ZKF2AYQz4OK5gEyDAjZkoXYBhCFqaWIAg=="
)


def test_a_recorded_log_line_is_read() -> None:
    (log,) = read_status_response(base64.b64decode(RECORDED_LOG)).logs
    assert (log.stream, log.data) == ("stderr", b"two\n")


def test_a_recorded_vertex_is_read() -> None:
    (vertex,) = read_status_response(base64.b64decode(RECORDED_VERTEX)).vertexes
    assert vertex.name == "[internal] load remote build context"
    assert vertex.started is not None and vertex.completed is not None
    assert 0.0 < vertex.completed - vertex.started < 0.2
    assert vertex.error == ""


def test_unknown_fields_of_every_wire_type_are_stepped_over() -> None:
    unknown = b"\xf8\x06\x05" + b"\xf9\x06" + b"12345678" + b"\xfa\x06\x02ab" + b"\xfd\x06" + b"1234"
    recorded = base64.b64decode(RECORDED_LOG)
    assert read_status_response(unknown + recorded) == read_status_response(recorded)


@pytest.mark.parametrize("cut", range(1, 97))
def test_a_message_cut_short_is_refused_not_misread(cut: int) -> None:
    with pytest.raises(UnreadableBinary):
        read_status_response(base64.b64decode(RECORDED_LOG)[:cut])


@given(st.binary(max_size=200))
def test_other_bytes_are_refused_or_read_as_nothing_known(data: bytes) -> None:
    with contextlib.suppress(UnreadableBinary):
        read_status_response(data)
