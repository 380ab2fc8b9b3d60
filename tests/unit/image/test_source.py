"""A source is read as it is spelled, and a spelling that hides something is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vdbg_env.common.errors import BadInput, VdbgError
from vdbg_env.image.profile import Bundled, GitRef, LocalTree, Sdist, Source, parse_source, refuse_credentials


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("vllm==0.33.0", Sdist(project="vllm", version="0.33.0")),
        ("git+https://example.org/a/b.git@v1.2", GitRef(url="https://example.org/a/b.git", ref="v1.2")),
        ("git+ssh://git@example.org/a/b@main", GitRef(url="ssh://git@example.org/a/b", ref="main")),
        ("./vllm", LocalTree(path="./vllm")),
        ("~/src/my vllm", LocalTree(path="~/src/my vllm")),
        ("bundled:sample", Bundled(name="sample")),
    ],
)
def test_each_spelling_is_read_and_written_back(text: str, source: Source) -> None:
    assert parse_source(text) == source
    assert str(source) == text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("vllm=0.33.0", "follows no known spelling"),
        ("vllm", "follows no known spelling"),
        ("git+https://example.org/a/b", "is not git"),
        ("git+https://me:secret@example.org/a/b@v1", "user name, password or token"),
        ("git+https://me:sec/ret@example.org/a/b@v1", "at me carries a user name, password or token"),
        ("git+https://example.org/a/b#token=x@v1", "at example.org carries a user name, password or token"),
        ("git+https://example.org/a/b?token=x@v1", "user name, password or token"),
        ("git+ssh://me:secret@example.org/a/b@v1", "user name, password or token"),
        ("git+file:///a/b@v1", "is not git"),
        ("git+https://example.org/a@--upload-pack=x", "is not git"),
        ("./a\nRUN evil", r"control character \\n"),
    ],
)
def test_a_spelling_that_is_none_is_refused_with_the_next_step(text: str, told: str) -> None:
    with pytest.raises(BadInput, match=told) as caught:
        parse_source(text)
    assert caught.value.next_step


def test_the_hash_of_a_file_is_no_secret() -> None:
    refuse_credentials("https://example.org/x.whl#sha256=00ff", "an address")
    with pytest.raises(BadInput, match="token"):
        refuse_credentials("https://example.org/x.whl#sha256=00ff&token=x", "an address")


@given(st.text())
def test_any_text_is_a_source_or_a_typed_refusal(text: str) -> None:
    try:
        source = parse_source(text)
    except VdbgError:
        return
    assert str(source) == text
