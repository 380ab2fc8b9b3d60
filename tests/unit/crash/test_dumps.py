import hashlib
import json
import os
import struct
import tarfile
import time
from pathlib import Path

import pytest

from tests.support.command_line import vdbg_env
from tests.support.golden import assert_golden
from vdbg_env.crash.dumps import DumpList, Export, Prune, dumps_json, export_text, list_text, prune_text
from vdbg_env.engine.dump_folder import MARKER
from vdbg_env.record.dump_files import Dump, Exported, Removal

DAY = 86400.0
NOW = 1_795_250_000.0
GPU_CORE = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack("<HH", 4, 190) + bytes(3000)

DUMPS = (
    Dump(path="core_node7_4711.nvcudmp", size=1_700_000_000, modified=NOW - 90, kind="gpu-core"),
    Dump(path="rank5/core\n812", size=50 << 30, modified=NOW - 3 * DAY, kind="host-core"),
    Dump(path="notes\nforged line.txt", size=12, modified=NOW - 40 * DAY, kind="other"),
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "dumps"
    (folder / "rank5").mkdir(parents=True)
    for name, data, age in [
        ("new.nvcudmp", GPU_CORE, 0.0),
        ("rank5/old.nvcudmp", GPU_CORE + b"old", 9 * DAY),
        ("notes.txt", b"keep me", 90 * DAY),
    ]:
        path = folder / name
        path.write_bytes(data)
        os.utime(path, (time.time() - age,) * 2)
    (folder / "link.nvcudmp").symlink_to("/etc/passwd")
    (folder / MARKER).touch()
    return folder


def test_the_texts_read_as_their_goldens() -> None:
    exported = Exported(path="core.1", size=3, sha256="ab" * 32)
    texts = [
        list_text(DumpList(place="volume vdbg-dumps", now=NOW, dumps=DUMPS)),
        list_text(DumpList(place="/empty", now=NOW, dumps=())),
        prune_text(Prune(place="/x", removed=False, removals=(Removal(dump=DUMPS[1], why="not among the newest 2"),))),
        prune_text(Prune(place="/x", removed=True, removals=(Removal(dump=DUMPS[1], why="3 d old"),))),
        prune_text(Prune(place="/x", removed=True, removals=())),
        export_text(Export(place="/x", target="crash.tar", files=(exported,))),
    ]
    assert_golden("cli/dumps-output.txt", "---\n".join(texts))


def test_the_json_reads_as_its_golden() -> None:
    documents = [
        dumps_json(DumpList(place="volume vdbg-dumps", now=NOW, dumps=DUMPS[:2])),
        dumps_json(Prune(place="/x", removed=False, removals=(Removal(dump=DUMPS[1], why="3 d old"),))),
        dumps_json(Export(place="/x", target="y", files=(Exported(path="c", size=3, sha256="ab"),))),
    ]
    assert_golden("cli/dumps.json", "".join(documents))


def test_a_folder_is_listed_without_any_engine(place: Path) -> None:
    ran = vdbg_env("dumps", "list", "--dumps", str(place), "--json")
    found = {d["path"]: d["kind"] for d in json.loads(ran.stdout)["dumps"]}
    assert found == {"new.nvcudmp": "gpu-core", "rank5/old.nvcudmp": "gpu-core", "notes.txt": "other"}


def test_prune_only_shows_until_it_is_told_yes(place: Path) -> None:
    argv = ("dumps", "prune", "--dumps", str(place), "--older-than", "7d")
    shown = vdbg_env(*argv)
    assert "would remove 1 dump," in shown.stdout
    assert (place / "rank5/old.nvcudmp").exists()
    assert "removed 1 dump," in vdbg_env(*argv, "--yes").stdout
    assert not (place / "rank5/old.nvcudmp").exists()
    assert (place / "notes.txt").exists() and (place / "new.nvcudmp").exists()


def test_a_folder_that_is_not_ours_is_pruned_only_when_it_is_adopted(place: Path) -> None:
    (place / MARKER).unlink()
    argv = ("dumps", "prune", "--dumps", str(place), "--older-than", "7d")
    assert "would remove 1 dump," in vdbg_env(*argv).stdout
    ran = vdbg_env(*argv, "--yes")
    assert (ran.status, (place / "rank5/old.nvcudmp").exists()) == (2, True)
    assert "--adopt" in ran.stderr
    assert "removed 1 dump," in vdbg_env(*argv, "--yes", "--adopt").stdout
    assert (place / MARKER).is_file()


def test_prune_without_a_rule_is_refused(place: Path) -> None:
    ran = vdbg_env("dumps", "prune", "--dumps", str(place), "--yes")
    assert ran.status == 2
    assert "--keep" in ran.stderr


@pytest.mark.parametrize(
    "argv", [("--older-than", "soon"), ("--max-size", "big"), ("--keep", "-1"), ("--dumps", "a b"), ("--dumps", "./x")]
)
def test_a_value_that_says_nothing_is_refused(argv: tuple[str, str]) -> None:
    assert vdbg_env("dumps", "prune", *argv).status == 2


def test_export_to_a_tar_is_whole_and_named_by_digest(place: Path, tmp_path: Path) -> None:
    ran = vdbg_env("dumps", "export", "--dumps", str(place), str(tmp_path / "crash.tar"))
    assert ran.status == 0, ran.stderr
    with tarfile.open(tmp_path / "crash.tar") as archive:
        held = {m.name: archive.extractfile(m).read() for m in archive}  # type: ignore[union-attr]
    assert held == {"new.nvcudmp": GPU_CORE, "rank5/old.nvcudmp": GPU_CORE + b"old"}
    assert hashlib.sha256(GPU_CORE).hexdigest() in ran.stdout


def test_export_to_a_folder_keeps_subfolders_and_takes_what_is_named(place: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    assert vdbg_env("dumps", "export", "--dumps", str(place), str(target), "rank5/old.nvcudmp", "notes.txt").status == 0
    assert sorted(str(p.relative_to(target)) for p in target.rglob("*") if p.is_file()) == [
        "notes.txt",
        "rank5/old.nvcudmp",
    ]


def test_a_failed_export_leaves_nothing(place: Path, tmp_path: Path) -> None:
    missing = tmp_path / "no" / "crash.tar"
    ran = vdbg_env("dumps", "export", "--dumps", str(place), str(missing))
    assert ran.status == 2 and "cannot write" in ran.stderr
    ran = vdbg_env("dumps", "export", "--dumps", str(place), str(tmp_path / "x"), "../secret")
    assert ran.status == 2 and "has no ../secret" in ran.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dumps"]


def test_an_existing_target_is_not_overwritten(place: Path, tmp_path: Path) -> None:
    (tmp_path / "crash.tar").write_text("mine")
    assert vdbg_env("dumps", "export", "--dumps", str(place), str(tmp_path / "crash.tar")).status == 2
    assert (tmp_path / "crash.tar").read_text() == "mine"
