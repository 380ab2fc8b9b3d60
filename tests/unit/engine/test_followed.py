"""Folders of an image are read with what links in them lead to, and no file is counted twice."""

import io
import tarfile

from vdbg_env.engine.images import Followed

LIBRARY = b"\x7fELF" + bytes(60)
# Path to what is there: a link to somewhere, or None for a library.
IMAGE = {
    "/opt/lib/x.so": None,
    "/opt/lib/x.so.1": "x.so",
    "/opt/lib/up": "..",
    "/opt/lib/out": "../other/",
    "/opt/lib/loop": "loop",
    "/opt/lib/nowhere": "/none",
    "/opt/other/y.so": None,
    "/opt/other/back": "/opt/lib",
}


def _tar(folder: str) -> tarfile.TarFile:
    parent, _, _ = folder.rpartition("/")
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for path, link in IMAGE.items():
            if f"{path}/".startswith(f"{folder}/"):
                member = tarfile.TarInfo(path.removeprefix(f"{parent}/"))
                member.type, member.linkname = (tarfile.SYMTYPE, link) if link else (tarfile.REGTYPE, "")
                member.size = 0 if link else len(LIBRARY)
                archive.addfile(member, io.BytesIO(b"" if link else LIBRARY))
    written.seek(0)
    return tarfile.open(fileobj=written, mode="r|")


def _found(*folders: str) -> list[str]:
    followed, found = Followed(folders), list[str]()
    for folder in followed.folders:
        if not followed.has_read(folder):
            with _tar(folder) as archive:
                found += [file.name for file in followed.files(folder, archive)]
    return found


def test_a_link_to_a_folder_around_it_counts_nothing_twice() -> None:
    assert _found("/opt/lib") == ["/opt/lib/x.so", "/opt/other/y.so"]


def test_a_folder_that_is_named_with_the_one_around_it_counts_once() -> None:
    assert _found("/opt/other", "/opt", "/opt/lib") == ["/opt/other/y.so", "/opt/lib/x.so"]
