"""Imports run one way: between rooms, and between the folders inside a room; pure rooms do not know the outside."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "builder" / "vdbg_env"

# Room -> the rooms that it may import, from the ground up. `room.folder` allows that folder alone.
ROOMS: dict[str, set[str]] = {
    "common": set(),
    "cuda": {"common"},
    "image": {"common"},
    "evidence": {"cuda", "common"},
    "runbook": {"evidence", "cuda", "common"},
    "record": {"runbook", "evidence", "cuda", "common"},
    "application": {"record", "runbook", "evidence", "image", "cuda", "common"},
    "report": {"application", "record", "runbook", "evidence", "image", "cuda", "common"},
    "supervisor": {"record.redaction", "common.writing"},
    "adapters": {
        "application.ports", "application.host", "supervisor", "record", "runbook", "evidence", "image", "cuda",
        "common",
    },
    "cli": {"application", "adapters", "report", "record", "runbook", "evidence", "image", "cuda", "common"},
}  # fmt: skip

# Room -> its folders, and the files next to them, from the ground up: each may import only what is listed before it.
INSIDE: dict[str, tuple[str, ...]] = {
    "common": ("errors", "size", "writing", "resources", "yaml_source", "console"),
    "cuda": ("symbols", "binary", "lines", "line_pack", "graft", "arming", "gpu_core"),
    "image": ("text", "context", "container", "profile", "units", "plan", "render"),
    "evidence": (
        "finding", "observation", "logs", "fingerprint", "system", "tools", "gpu_core_findings",
        "kernel_makers", "weigh_findings", "triage", "knowledge",
    ),
    "runbook": (
        "catalogue", "model", "workload", "invocation", "state", "verdict", "expressions", "parsing", "lint", "load",
        "machine",
    ),
    "record": (
        "atomic_write", "set_ids", "redaction", "codec", "event_log", "run_directory", "run_files", "runs",
        "progress", "diff", "dump_files", "recorded_requests",
    ),
    "report": ("plain_text", "codec", "core", "lineinfo", "dumps", "run", "runbook"),
    "application": (
        "ports", "host", "knowledge", "line_packs", "analysis", "lines", "image", "run", "builtins", "session", "guard",
        "failure_pages",
    ),
    "supervisor": (
        "processes", "state", "job", "phase", "launch", "output", "watch", "loop", "entry", "request_driver",
        "__main__",
    ),
    "adapters": ("files", "lines", "capture", "docker", "builders", "host", "execution", "placement", "places"),
    "cli": ("composition", "options", "display", "image", "runbook", "crash", "lines", "container"),
}  # fmt: skip

# __init__.py holds the version and __main__.py starts the command line.
ENTRANCE = {"", "__main__"}
PURE = {"cuda", "image", "evidence", "runbook"}
OUTSIDE = {"click", "docker", "subprocess", "socket", "os", "shutil", "rich", "signal", "threading", "multiprocessing"}


def parts_of(module: Path) -> tuple[str, ...]:
    parts = module.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imports(module: Path) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the line and the parts of each module that `module` imports, a submodule named by `from` included."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, tuple(alias.name.split("."))) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: relative imports hide the arrow"
            base = tuple((node.module or "").split("."))
            folder = PACKAGE.joinpath(*base[1:])
            for alias in node.names:
                is_module = (folder / alias.name).is_dir() or (folder / f"{alias.name}.py").is_file()
                yield node.lineno, (*base, alias.name) if base[0] == "vdbg_env" and is_module else base


def wrong_arrows(module: Path) -> list[str]:
    here = parts_of(module)
    room = here[0] if here else ""
    if room in ENTRANCE:
        return []
    wrong = []
    for line, name in imports(module):
        where = f"{module.relative_to(PACKAGE)}:{line}: {'.'.join(name)}"
        if name[0] != "vdbg_env":
            if room in PURE and name[0] in OUTSIDE:
                wrong.append(f"{where}: {room} is pure")
            continue
        target = name[1:]
        if not target or target[0] in ENTRANCE:
            continue
        if target[0] != room:
            if not ({target[0], ".".join(target[:2])} & ROOMS[room]):
                wrong.append(f"{where}: {room} may not import {'.'.join(target[:2])}")
            if target[0] == "adapters" and here[:2] != ("cli", "composition"):
                wrong.append(f"{where}: adapters are made in cli/composition only")
        elif len(here) > 1 and len(target) > 1 and here[1] != target[1] and target[1] in INSIDE[room]:
            order = INSIDE[room]
            if here[1] in order and order.index(target[1]) > order.index(here[1]):
                wrong.append(f"{where}: {room}/{here[1]} is below {room}/{target[1]}")
    return wrong


# What only adapters and the record may do: `application` reaches files, clocks and sockets through its ports.
WORLD = {"glob", "os", "platformdirs", "shutil", "socket", "subprocess", "tempfile", "time"}
PATH_WORK = {
    "absolute", "chmod", "cwd", "exists", "expanduser", "glob", "home", "is_dir", "is_file", "is_symlink", "iterdir",
    "lstat", "mkdir", "read_bytes", "read_text", "readlink", "resolve", "rglob", "rmdir", "stat", "symlink_to", "touch",
    "unlink", "utime", "write_bytes", "write_text",
}  # fmt: skip
CLOCKS = {"now", "today", "utcnow", "token_bytes", "token_hex"}
# Where shipped data is read at its fixed place.
SHIPPED_DATA = {
    "application/image/library.py", "application/image/render.py", "application/image/site.py",
    "application/knowledge/name_lint.py",
}  # fmt: skip


def world_work(module: Path) -> Iterator[str]:
    """Yield each import or call by which a module reaches files, clocks or sockets itself."""
    tree = ast.parse(module.read_text())
    for line, name in imports(module):
        if name[0] in WORLD:
            yield f"{line}: import {name[0]}"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id="open"):
                yield f"{node.lineno}: open()"
            case ast.Attribute(attr="open") if all(isinstance(a, ast.Constant) for a in node.args):
                yield f"{node.lineno}: .open()"  # a port's `open` is given what to open
            case ast.Attribute(value=ast.Attribute(attr="files") | ast.Attribute(attr="_files")):
                continue  # of the ports RunFiles and RunbookFiles
            case ast.Attribute(attr=attr) if attr in PATH_WORK | CLOCKS:
                yield f"{node.lineno}: .{attr}()"


APPLICATION = sorted((PACKAGE / "application").rglob("*.py"))


@pytest.mark.parametrize("module", APPLICATION, ids=lambda m: str(m.relative_to(PACKAGE)))
def test_application_reaches_the_world_through_ports_only(module: Path) -> None:
    if str(module.relative_to(PACKAGE)) in SHIPPED_DATA:
        assert list(world_work(module)), "this module is clean: take it off the list"
    else:
        assert list(world_work(module)) == []


def test_work_beside_the_ports_is_seen(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text(
        "import os\nfrom datetime import datetime\ndef f(p, cores, self):\n    p.read_text()\n    p.open('rb')\n"
        "    open(p)\n    datetime.now()\n    cores.open(p)\n    self._files.exists(p)\n"
    )
    assert len(list(world_work(planted))) == 5


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("module", MODULES, ids=lambda m: str(m.relative_to(PACKAGE)))
def test_imports_follow_the_arrows(module: Path) -> None:
    assert wrong_arrows(module) == []


def test_every_room_is_drawn() -> None:
    assert {(*parts_of(m), "")[0] for m in MODULES} - ENTRANCE == set(ROOMS) == set(INSIDE)


@pytest.mark.parametrize("room", INSIDE)
def test_every_folder_of_a_room_is_drawn(room: str) -> None:
    found = {p.name for p in (PACKAGE / room).iterdir() if p.is_dir() and any(p.rglob("*.py"))}
    assert found - {"__pycache__"} <= set(INSIDE[room])


@pytest.mark.parametrize("folder", sorted({m.parent for m in MODULES}), ids=lambda f: str(f.relative_to(PACKAGE)))
def test_no_folder_has_more_than_twelve_entries(folder: Path) -> None:
    entries = [p for p in folder.iterdir() if not p.name.startswith("__") and (p.suffix == ".py" or p.is_dir())]
    assert len(entries) <= 12, "group what belongs together in a folder that says so"


def test_a_wrong_arrow_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.test_arrows.PACKAGE", tmp_path)
    planted = tmp_path / "cuda" / "binary" / "bad.py"
    planted.parent.mkdir(parents=True)
    (tmp_path / "cuda" / "lines").mkdir()
    (tmp_path / "application").mkdir()
    planted.write_text(
        "import subprocess\nfrom vdbg_env.cli import main\nfrom vdbg_env import application\n"
        "import vdbg_env.cuda.lines.x\n"
    )
    assert len(wrong_arrows(planted)) == 4


def test_no_arrow_runs_back() -> None:
    order = list(ROOMS)
    assert all(
        order.index(target.split(".")[0]) < order.index(here) for here, targets in ROOMS.items() for target in targets
    )
