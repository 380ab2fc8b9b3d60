"""The image's own cuobjdump as second witness, where its list breaks off: words never explain it, cubins may."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from gpucore.lineinfo import FileReport, Verdict
from tests.builders.core_builder import CUBINS
from tests.builders.cubin import cubin
from tests.builders.fatbin import EntrySpec, container, host_library
from tests.support.build_orders import built, small_order
from tests.support.toolchain import cuda_tool
from vdbg_env.build.builder import ImageBuilder
from vdbg_env.build.prove import prove_image, require_proven
from vdbg_env.common.errors import NotProven

pytestmark = pytest.mark.engine

READABLE = (CUBINS / "inline_chain_sm80.cubin").read_bytes()
PHENTSIZE = 54  # in the ELF header


def unreadable() -> bytes:
    """Return a cubin at which cuobjdump stops with `Invalid ELF`, and in which nothing we read is changed."""
    data = bytearray((CUBINS / "inline_chain_sm90.cubin").read_bytes())
    struct.pack_into("<H", data, PHENTSIZE, 0)
    return bytes(data)


LIBRARY = host_library(
    container(
        EntrySpec(payload=READABLE, arch=80), EntrySpec(payload=unreadable(), arch=90), EntrySpec(payload=READABLE)
    )
)
# Says the known words of every library, as a cuobjdump would that is broken in another way, and reads single cubins.
WORDS_ALONE = """#!/bin/sh
case " $* " in
  *" -lelf "*) echo 'ELF file    1: k.1.sm_80.cubin'; echo "cuobjdump fatal   : Invalid ELF in '$3'" >&2; exit 1;;
esac
exec /usr/local/bin/cuobjdump-real "$@"
"""


def proof(engine: ImageBuilder, library: bytes, wrapper: str = "") -> FileReport:
    """Build an image with a library and cuobjdump, behind a wrapper if one is given, and prove it."""
    cuobjdump = Path(cuda_tool("cuobjdump")).read_bytes()
    files = {"lib/libk.so": library, "cuobjdump": cuobjdump, "wrapper": wrapper.encode()}
    name = "cuobjdump-real" if wrapper else "cuobjdump"
    commands = [f"install -m 755 cuobjdump /usr/local/bin/{name}", "install -m 755 wrapper /usr/local/bin/cuobjdump"]
    order = small_order(*commands[: 2 if wrapper else 1], files=files)
    image = built(list(engine.build(order))).image_id
    try:
        report = prove_image(engine, image, order.plan)
        require_proven(report, image)
    finally:
        engine.remove(image)
    (file,) = report.files
    return file


def test_a_list_that_broke_off_at_a_cubin_it_cannot_read_is_explained(
    container_engine: ImageBuilder,
) -> None:
    file = proof(container_engine, LIBRARY)
    assert file.witness
    assert (file.verdict, file.witness.agrees, file.witness.explained) == (Verdict.FULL, False, True)
    assert (file.witness.listed, file.witness.rc) == (1, 1)
    reason = file.witness.reason or ""
    assert "it stopped after 1 of 3 cubins with 'Invalid ELF'" in reason
    assert "asked about 3 cubins one by one, it shows the same section table for 2, none for 1 (sm_90)" in reason


def test_the_words_alone_prove_nothing(container_engine: ImageBuilder) -> None:
    library = host_library(container(*(EntrySpec(payload=READABLE, arch=80) for _ in range(3))))
    with pytest.raises(NotProven, match="cuobjdump does not confirm") as caught:
        proof(container_engine, library, WORDS_ALONE)
    assert "it shows the same section table for 3" in caught.value.details[0]


def test_a_library_that_a_link_leads_to_is_proven_too(container_engine: ImageBuilder) -> None:
    bare = host_library(container(EntrySpec(payload=cubin("k"), arch=80)))
    links = (
        "ln -s /opt/elsewhere/libbare.so lib/libbare.so; ln -s . lib/self; ln -s ../lib lib/up; ln -s /nowhere lib/no"
    )
    order = small_order(
        f"mkdir /opt/elsewhere; mv lib/libbare.so /opt/elsewhere; {links}; ln -s /opt/elsewhere lib/folder",
        "install -m 755 cuobjdump /usr/local/bin/cuobjdump",
        files={"lib/libk.so": LIBRARY, "lib/libbare.so": bare, "cuobjdump": Path(cuda_tool("cuobjdump")).read_bytes()},
    )
    image = built(list(container_engine.build(order))).image_id
    try:
        report = prove_image(container_engine, image, order.plan)
        assert [file.path for file in report.files] == ["/opt/vdbg/lib/libk.so", "/opt/elsewhere/libbare.so"]
        with pytest.raises(NotProven, match="partial"):
            require_proven(report, image)
    finally:
        container_engine.remove(image)


def test_a_folder_to_prove_that_has_nothing_in_it_is_refused(container_engine: ImageBuilder) -> None:
    order = small_order(
        "install -m 755 cuobjdump /usr/local/bin/cuobjdump; mkdir more",
        files={"lib/libk.so": LIBRARY, "cuobjdump": Path(cuda_tool("cuobjdump")).read_bytes()},
    )
    image = built(list(container_engine.build(order))).image_id
    try:
        for missing in ("more", "mistyped"):
            with pytest.raises(NotProven, match=f"/opt/vdbg/{missing} of the image has no library or program"):
                prove_image(container_engine, image, replace(order.plan, artifacts=("lib", missing)))
    finally:
        container_engine.remove(image)


def test_a_lent_file_is_there_for_one_run_alone(image_engine: ImageBuilder) -> None:
    image = built(list(image_engine.build(small_order("true", files={"lib/a": b"a"})))).image_id
    lent = {"/opt/vdbg/lent.txt": b"for one run"}
    try:
        assert image_engine.execute(image, ["/bin/cat", "/opt/vdbg/lent.txt"], lent=lent).stdout == "for one run"
        assert image_engine.execute(image, ["/bin/cat", "/opt/vdbg/lent.txt"]).code != 0
    finally:
        image_engine.remove(image)
