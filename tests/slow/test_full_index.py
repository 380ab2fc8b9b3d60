"""The index of runs on a disk that is full, or becomes full at any page that is written of it."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from tests.slow.small_disk import mounted
from vdbg_env.record.runs import INDEX, RunIndex

RUNS = 40
PAGE = 4096


def keep(home: Path, text: str, most: int = RUNS) -> None:
    index = RunIndex(home, "list")
    for name, stamp in index.names()[:most]:
        index.put(name, stamp, {"text": text * 2000})
    index.save()


def kept(home: Path) -> list[str]:
    index = RunIndex(home, "list")
    return [known["text"][0] for run in index.names() if (known := index.get(*run))]


@pytest.mark.parametrize("earlier", [0, 20, RUNS])
def test_it_is_as_before_or_as_it_was_to_be(tmp_path: Path, earlier: int) -> None:
    seen = set()
    with mounted(tmp_path / "disk", "size=2m") as disk:
        for number in range(RUNS):
            run = disk / f"run-{number:02}"
            run.mkdir()
            (run / "run.json").write_text("{}")
        for free in range(0, 110, 3):
            (disk / INDEX).unlink(missing_ok=True)
            if earlier:
                keep(disk, "a", earlier)
            with (disk / "full").open("wb", buffering=0) as full:
                with suppress(OSError):
                    while full.write(bytes(PAGE)):
                        pass
                os.ftruncate(full.fileno(), max(0, full.tell() - free * PAGE))
            keep(disk, "b")
            seen.add("".join(kept(disk)))
            assert {path.name for path in disk.glob(f"{INDEX}*")} <= {INDEX}, "no journal stays"
            (disk / "full").unlink()
    assert seen == {"a" * earlier, "b" * RUNS}
