"""A guarded command starts, prints and ends as without guard, whatever is broken in what guards it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slow.small_disk import mounted
from tests.support.patience import patience
from tests.unit.cli.runbook.test_guard import ROOT, environment, guard_command
from vdbg_env.__main__ import prefer_own_modules

COMMAND = ("sh", "-c", "echo out; echo err >&2; read line; echo $line; exit 7")
UNGUARDED = "vdbg-env guard: the command runs without its guard: "


@pytest.fixture
def own_copy(tmp_path: Path) -> Path:
    """Return the folder of a copy of the package, to be broken."""
    for name in ("runbooks", "images", "templates", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    return Path(shutil.copytree(ROOT / "builder", tmp_path / "builder", ignore=shutil.ignore_patterns("__pycache__")))


def guarded(
    package: Path, folder: Path, *flags: str, command: tuple[str, ...] = COMMAND, **more: str
) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "vdbg_env", "guard", *flags, "--", *command], input="in\n", text=True,
        env={**environment(folder), "PYTHONPATH": str(package), **more}, cwd=folder, capture_output=True,
        timeout=patience(60), check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def assert_ran_without(done: tuple[int, str, str], why: str) -> None:
    """Assert that the command ran as it does without guard, and that one line says why."""
    status, stdout, stderr = done
    assert (status, stdout) == (7, "out\nin\n"), stderr
    line, rest = stderr.split("\n", 1)
    assert line.startswith(UNGUARDED) and why in line, stderr
    assert rest == "err\n"


def replace_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise ImportError('made for another Python')", "ImportError: made for another Python"),
        ("def echo(: pass", "SyntaxError: "),
        ("class Choice: pass", "AttributeError: module 'click' has no attribute"),
        ("raise RuntimeError('a line\\nand\\x1b[31m another')", "RuntimeError: a line and [31m another"),
    ],
    ids=["missing", "torn", "other version", "words of several lines"],
)
def test_with_a_broken_click(own_copy: Path, tmp_path: Path, code: str, why: str) -> None:
    (own_copy / "click.py").write_text(code)
    assert_ran_without(guarded(own_copy, tmp_path), why)


@pytest.mark.parametrize(
    ("text", "command", "status", "stdout"),
    [
        (b"echo ran $1; exit 7\n", ("job", "it"), 7, "ran it\n"),
        (b"\x7fELF\2\1\1\0", ("./job",), 126, ""),
        (b"", ("",), 127, ""),
    ],
    ids=["a script without an interpreter line", "a program of another machine", "no name"],
)
def test_a_command_that_the_kernel_does_not_start(
    own_copy: Path, tmp_path: Path, text: bytes, command: tuple[str, ...], status: int, stdout: str
) -> None:
    (own_copy / "click.py").write_text("raise ImportError")
    job = tmp_path / "job"
    job.write_bytes(text)
    job.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = guarded(own_copy, tmp_path, command=command, PATH=path)
    assert done[:2] == (status, stdout) and "Traceback" not in done[2], done[2]


@pytest.mark.parametrize(
    "lost",
    ["cli", "cli/__init__.py", "cli/runbook.py", "run", "run/guard.py", "run/local.py", "record/run_directory.py",
     "common", "evidence/finding.py", "supervisor", "supervisor/loop.py", "supervisor/__main__.py"],
)  # fmt: skip
def test_with_a_half_installed_package(own_copy: Path, tmp_path: Path, lost: str) -> None:
    path = own_copy / "vdbg_env" / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert_ran_without(guarded(own_copy, tmp_path), "")


def test_without_its_runbook(own_copy: Path, tmp_path: Path) -> None:
    (tmp_path / "runbooks").unlink()
    assert_ran_without(guarded(own_copy, tmp_path), "no record can be made")


def test_with_a_module_of_the_workload_that_is_named_like_one_of_pythons(tmp_path: Path) -> None:
    """The workload's PYTHONPATH is the workload's: guard works as ever, and the command finds its own module."""
    (tmp_path / "own").mkdir()
    for name in ("json", "logging", "signal", "threading", "click", "gpucore"):
        (tmp_path / "own" / f"{name}.py").write_text("raise SystemExit('not for guard')")
    (tmp_path / "own" / "json.py").write_text("print('the own json')")
    command = (sys.executable, "-c", "import json; raise SystemExit(7)")
    path = f"{tmp_path / 'own'}:{ROOT / 'builder'}"
    status, stdout, stderr = guarded(ROOT / "builder", tmp_path, command=command, PYTHONPATH=path)
    assert (status, stdout) == (7, "the own json\n"), stderr
    assert stderr.startswith('{"schema": "vdbg-env/guard/v1"')


def test_as_installed_nothing_of_python_is_imported_before_the_path_is_in_order(tmp_path: Path) -> None:
    """The installed program imports the package, and with it what that imports, while the path is the workload's."""
    for name in ("typing", "types", "enum", "re", "functools", "collections", "operator", "gc", "errno"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not for guard')")
    installed = "import sys; from vdbg_env.__main__ import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", installed, "guard", "--", *COMMAND], input="in\n", text=True, check=False,
        env={**environment(tmp_path), "PYTHONPATH": f"{tmp_path}:{ROOT / 'builder'}"}, cwd=tmp_path,
        capture_output=True, timeout=patience(60),
    )  # fmt: skip
    assert_ran_without((done.returncode, done.stdout, done.stderr), "No module named")  # -S: no click


def test_where_the_users_folders_stand_in_the_path_of_imports() -> None:
    library = os.path.dirname(os.__file__)  # noqa: PTH120
    path = ["/work", "/users", "/home", "/zip", library, f"{library}/lib-dynload", "/site"]
    assert prefer_own_modules(path, ["/work", "/users"], "/home") == [*path[2:], "/work", "/users"]
    own = prefer_own_modules(path, ["/work", "/users", "/home"], "/home")
    assert own == ["/zip", library, f"{library}/lib-dynload", "/home", "/site", "/work", "/users"]


@pytest.mark.parametrize("count", [12, 16, 20, 21, 22, 23, 24, 26, 28, 32])
def test_with_few_open_files(tmp_path: Path, count: int) -> None:
    """From some number on the record is whole; below it the command runs all the same."""
    done = subprocess.run(
        ["sh", "-c", f'ulimit -n {count}; exec "$@"', "sh", *guard_command(*COMMAND)],
        env=environment(tmp_path), cwd=tmp_path, input="in\n", text=True, capture_output=True, timeout=patience(60),
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (7, "out\nin\n"), done.stderr
    assert "err\n" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("free", [0, 4, 12])
def test_with_a_full_disk_below_everything(tmp_path: Path, free: int) -> None:
    with mounted(tmp_path / "full", "size=64k") as full:
        (full / "fill").write_bytes(bytes((64 - free) << 10))
        status, stdout, stderr = guarded(ROOT / "builder", tmp_path, TMPDIR=str(full), VDBG_ENV_RUNS=str(full / "runs"))
    assert (status, stdout) == (7, "out\nin\n") and "err\n" in stderr


@pytest.mark.parametrize(
    ("place", "old", "new"),
    [
        (
            "run/session.py",
            "    def run(self, view: RunView) -> FinishedRun:\n",
            "        raise ValueError('planted')\n",
        ),
        ("run/guarded.py", "    def hooks(self,", "    hooks = 3\n    def other(self,"),
        ("cli/runbook.py", "        guarding = _guard(argv, flags)\n", "        raise MemoryError\n"),
        (
            "supervisor/loop.py",
            "        self._tree = AttemptTree(",
            "        raise ValueError('planted')\n        self._tree = (",
        ),
        (
            "supervisor/launch.py",
            "    pid = os.fork()\n    if pid == 0:\n        _become(parent, argv, env, cwd, out_",
            "    raise OSError(11, 'no room')\n    if pid == 0:\n        _become(parent, argv, env, cwd, out_",
        ),
    ],
    ids=["session", "guarded", "no memory", "supervisor", "no room for a process"],
)
def test_a_fault_before_the_command_starts(own_copy: Path, tmp_path: Path, place: str, old: str, new: str) -> None:
    replace_text(own_copy / "vdbg_env" / place, old, old + new if old.endswith(":\n") else new)
    assert_ran_without(guarded(own_copy, tmp_path), "")


LONG = (
    sys.executable, "-c",
    "import sys, time, signal\n"
    "signal.signal(signal.SIGUSR1, lambda *_: print('a signal', flush=True))\n"
    "for n in range(8): print(n, 'x' * 50000, flush=True); time.sleep(0.2)\n"
    "print('end', file=sys.stderr); sys.exit(7)",
)  # fmt: skip
FAULTS: dict[str, tuple[str, str, str]] = {
    "the look at it": ("supervisor/loop.py", "    def _look(self) -> None:\n", "        raise ValueError('planted')\n"),
    "the search of its output": (
        "supervisor/streams.py",
        "    def feed(self, data: bytes) -> list[LineMatcher]:\n",
        "        1 / 0\n",
    ),
    "its record": (
        "supervisor/streams.py",
        "    def _open_stream(self, name: str, descriptor: int | None, matchers: Matchers) -> None:\n",
        "        raise OSError(24, 'Too many open files')\n",
    ),
    "its end": (
        "supervisor/loop.py",
        "    def finish(self, verdict: EndReason) -> None:\n",
        "        raise KeyError('x')\n",
    ),
    "the wait of guard": (
        "run/local.py",
        "    def _sleep(self, left: float | None) -> None:\n",
        "        raise RuntimeError('planted')\n",
    ),
    "what reads its end": (
        "run/guard.py",
        "def outcome_of(report: Report) -> Status | None:\n",
        "    raise TypeError('planted')\n",
    ),
    "what announces it": (
        "run/guard.py",
        "def guard_line(said: Announcement, most: int | None = None) -> str:\n",
        "    1 / 0\n",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_while_the_command_runs(own_copy: Path, tmp_path: Path, fault: str) -> None:
    """Its output is whole, its status its own, it runs once, and something is said."""
    place, old, new = FAULTS[fault]
    replace_text(own_copy / "vdbg_env" / place, old, old + new)
    status, stdout, stderr = guarded(own_copy, tmp_path, command=LONG)
    assert status == 7, stderr
    assert stdout == "".join(f"{n} {'x' * 50000}\n" for n in range(8))
    assert stderr.startswith("end\n") and re.search("vdbg-env.guard", stderr.removeprefix("end\n"))
    assert "Traceback" not in stderr
