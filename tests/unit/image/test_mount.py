"""Folders that containers of steps see."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vdbg_env.common.errors import BadInput
from vdbg_env.image.settings import Mount, parse_mount, start_folder


@pytest.mark.parametrize(
    ("text", "mount"),
    [
        (".", Mount(source="/home/me", target="/home/me")),
        ("./models", Mount(source="/home/me/models", target="/home/me/models")),
        ("models:ro", Mount(source="/home/me/models", target="/home/me/models", read_only=True)),
        ("/models/", Mount(source="/models", target="/models")),
        ("/a:/b", Mount(source="/a", target="/b")),
        ("/a:/b:ro", Mount(source="/a", target="/b", read_only=True)),
        ("/a:/b:rw", Mount(source="/a", target="/b")),
        ("/a:rw", Mount(source="/a", target="/a")),
    ],
)
def test_a_mount_is_read(text: str, mount: Mount) -> None:
    assert parse_mount(text, "/home/me") == mount


@pytest.mark.parametrize("text", ["", ":/b", "/a:b", "/a:/b:/c", "/a:/", "/", "/a:/b:ro:ro", "/a\n"])
def test_what_is_no_mount_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_mount(text, "/home/me")


@given(st.text(max_size=30))
def test_a_mount_is_of_absolute_paths_or_refused(text: str) -> None:
    try:
        mount = parse_mount(text, "/home/me")
    except BadInput:
        return
    assert mount.source.startswith("/") and mount.target.startswith("/") and mount.target != "/"


@pytest.mark.parametrize(
    ("here", "folder"),
    [
        ("/job", "/code"),
        ("/job/deep/er", "/code/deep/er"),
        ("/jobshop", None),
        ("/", None),
    ],
)
def test_commands_start_where_the_current_folder_is_seen(here: str, folder: str | None) -> None:
    assert start_folder((Mount(source="/job", target="/code"),), here) == folder


@pytest.mark.parametrize(
    ("source", "target", "outside", "inside"),
    [
        ("/src", "/code", "/src/a.cu", "/code/a.cu"),
        ("/src", "/code", "/src", "/code"),
        ("/", "/host", "/src/a.cu", "/host/src/a.cu"),
        ("/", "/host", "/", "/host"),
    ],
)
def test_a_mount_leads_both_ways(source: str, target: str, outside: str, inside: str) -> None:
    mount = Mount(source=source, target=target)
    assert (mount.inside(outside), mount.outside(inside)) == (inside, outside)
    assert (mount.outside("/codes/a.cu"), mount.outside("/hosts")) == (None, None)
