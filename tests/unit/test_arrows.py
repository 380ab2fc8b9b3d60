"""Imports run one way: between rooms, and between the folders inside a room; pure rooms do not know the outside."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "builder" / "vdbg_env"
LIBRARY = PACKAGE.parent / "gpucore"

# Room -> the rooms that it may import, from the ground up. `room.folder` allows that folder alone.
ROOMS: dict[str, set[str]] = {
    "common": set(),
    "image": {"common"},
    "evidence": {"common"},
    "runbook": {"evidence", "common"},
    "record": {"runbook", "evidence", "common"},
    "supervisor": {"record.redactor", "common.files", "common.patterns"},
    "crash": {"supervisor.proc", "record", "evidence", "common"},
    "lines": {"crash", "evidence", "image", "common"},
    "report": {"lines", "crash", "record", "runbook", "evidence", "image", "common"},
    "engine": {"crash", "supervisor.proc", "record", "image", "common"},
    "build": {
        "engine", "report", "lines", "crash", "supervisor.proc", "record", "runbook", "image", "common",
    },
    "run": {
        "engine", "build", "lines", "report", "crash", "supervisor", "record", "runbook",
        "evidence", "image", "common",
    },
    "agents": {"run", "build", "report", "crash", "record", "evidence", "common"},
    "cli": {
        "agents", "run", "build", "engine", "lines", "report", "crash", "record", "runbook",
        "evidence", "image", "common",
    },
}  # fmt: skip

# Room -> its folders, and the files next to them, from the ground up: each may import only what is listed before it.
INSIDE: dict[str, tuple[str, ...]] = {
    "common": (
        "errors", "console", "files", "plug_ins", "resources", "distribution", "patterns", "yaml_source", "stop",
        "programs", "flags",
    ),
    "image": (
        "context", "settings", "profile", "knowledge", "plan", "planner", "manifests",
        "patch",
    ),
    "evidence": (
        "finding", "log_line", "system", "nccl", "python_text", "deaths", "tools", "cuda_gdb", "sanitizer",
        "kernel_makers", "gpu_findings", "triage_rules", "triage_scan", "triage_verdict", "knowledge",
    ),
    "runbook": (
        "model", "workload", "expressions", "state", "parse", "lint", "judge", "machine",
    ),
    "record": (
        "run_directory", "redactor", "masking", "runs", "event_log", "progress", "diff",
        "dump_files", "recorded_requests", "export_run",
    ),
    "crash": ("workers", "archives", "files", "line_packs", "places"),
    "report": (
        "model", "assemble", "as_terminal", "pages",
        "runbooks",
    ),
    "lines": ("packs",),
    "supervisor": (
        "proc", "process_tree", "control_files", "job", "launch", "carry_on", "streams", "helpers", "sockets", "watch",
        "loop", "request_driver", "__main__",
    ),
    "engine": (
        "client", "trees", "request", "dump_folder", "containers", "images", "dump_volume", "targets",
    ),
    "build": (
        "builder", "progress", "host", "buildkit", "cuobjdump", "prove", "build", "bundle", "render",
    ),
    "run": (
        "nccl_ras", "placement", "library", "failure_pages", "guarded", "job", "attempt",
        "local", "container", "orders", "rank_record", "rank", "ranks", "recordings", "stale", "doctor",
        "capture", "capture_proxy", "execute", "core_code", "builtin_steps", "builtin_readers",
        "begin", "session", "history", "crash_groups", "again", "guard",
    ),
    "agents": ("library", "answer", "folders", "tools", "server", "annotate", "pytest_plugin"),
    "cli": ("options", "places"),
}  # fmt: skip

# __init__.py holds the version and __main__.py starts the command line.
ENTRANCE = {"", "__main__"}
PURE = {"image", "evidence", "runbook"}
# What is loaded by the entry points of `common/plug_ins.py`, and by nothing else: no room imports it.
PLUG_INS = {"vdbg_env_lines", "vdbg_env_slurm"}
# The modules of gpucore, from the ground up: each may import only what is listed before it.
READERS = (
    "errors", "arch", "arming", "elf", "mangling", "cubin", "fatbin", "dwarf", "toolkit", "code_map", "lineinfo",
    "core_layout", "core_reader", "core", "code_identity", "line_pack", "line_packs", "graft", "sass", "explain",
)  # fmt: skip
PACKAGES_OF_READERS = {"zstandard", "lz4", "ahocorasick_rs", "pydemumble"}  # the last two only where they are installed
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
        if name[0] == "gpucore" and room == "supervisor":
            wrong.append(f"{where}: the supervisor reads no binary")
        if name[0] in PLUG_INS:
            wrong.append(f"{where}: a plug-in is loaded by its entry point")
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
        elif len(here) > 1 and len(target) > 1 and here[1] != target[1] and target[1] in INSIDE[room]:
            order = INSIDE[room]
            if here[1] in order and order.index(target[1]) > order.index(here[1]):
                wrong.append(f"{where}: {room}/{here[1]} is below {room}/{target[1]}")
    return wrong


# What reaches files, clocks and sockets.
WORLD = {"glob", "os", "platformdirs", "shutil", "socket", "subprocess", "tempfile", "time"}


def wrong_imports_of_readers() -> Iterator[str]:
    """Yield each import of gpucore that is not the standard library, its four packages, or a module below."""
    for module in LIBRARY.rglob("*.py"):
        for line, name in imports(module):
            where = f"gpucore/{module.relative_to(LIBRARY)}:{line}: {'.'.join(name)}"
            if name[0] == "gpucore":
                own = module.relative_to(LIBRARY).with_suffix("").parts[0]
                below = READERS[: READERS.index(own)] if own in READERS else READERS
                if name[1:2] and name[1] not in below and not (name[1] == own and module.parent != LIBRARY):
                    yield f"{where}: from the ground up"
            elif name[0] not in sys.stdlib_module_names | PACKAGES_OF_READERS or name[0] in WORLD | OUTSIDE:
                yield f"{where}: bytes in, values out"


def wrong_imports_of_plug_ins() -> Iterator[str]:
    """Yield each import of a plug-in by another one."""
    for plug_in in PLUG_INS:
        for module in (PACKAGE.parent / plug_in).rglob("*.py"):
            for line, name in imports(module):
                if name[0] in PLUG_INS - {plug_in}:
                    yield f"{module.relative_to(PACKAGE.parent)}:{line}: {'.'.join(name)}: another plug-in"


MODULES = sorted(PACKAGE.rglob("*.py"))


def test_imports_follow_the_arrows() -> None:
    assert [wrong for module in MODULES for wrong in wrong_arrows(module)] == []
    assert {(*parts_of(m), "")[0] for m in MODULES} - ENTRANCE == set(ROOMS) == set(INSIDE), "a room is not drawn"
    for room in INSIDE:
        folders = {p.name for p in (PACKAGE / room).iterdir() if p.is_dir() and any(p.rglob("*.py"))}
        assert folders - {"__pycache__"} <= set(INSIDE[room]), "a folder of the room is not drawn"
    order = list(ROOMS)
    assert all(order.index(t.split(".")[0]) < order.index(here) for here, targets in ROOMS.items() for t in targets)


def test_no_plug_in_needs_another() -> None:
    assert list(wrong_imports_of_plug_ins()) == []
    folders = {path.parent.name for path in PACKAGE.parent.glob("*/__init__.py")}
    assert folders == {"vdbg_env", "gpucore"} | PLUG_INS, "a package of builder/ is not drawn"


def test_the_readers_of_binaries_import_nothing_of_the_program() -> None:
    assert list(wrong_imports_of_readers()) == []
