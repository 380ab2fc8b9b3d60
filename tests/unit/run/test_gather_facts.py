"""What is known of the workload's own Python and libraries before anything is started."""

import sys
from pathlib import Path

import pytest

from tests.unit.run.test_steps import Answer, Binaries, Programs
from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.programs import ProgramRunner
from vdbg_env.common.programs import Programs as RealPrograms
from vdbg_env.crash.files import BinaryFiles, BinarySource, SourceFiles
from vdbg_env.record.redactor import Pseudonyms
from vdbg_env.run.begin import RunbookRequest, gather_facts
from vdbg_env.run.placement import StepPlace, StepPlacement
from vdbg_env.run.stale import installed_versions, workload_libraries, workload_python
from vdbg_env.runbook.model import Requires, Runbook
from vdbg_env.runbook.state import Facts

CUBINS = Path(__file__).parents[2] / "data" / "cubins"


def place(programs: ProgramRunner, binaries: BinarySource) -> StepPlace:
    def runner(_run: Path, _sensitive: tuple[str, ...], _names: Pseudonyms | None) -> StepPlacement:
        raise AssertionError("nothing is to be started")

    return StepPlace(
        programs=programs, reading=lambda _: programs, binaries=binaries, environment={}, data_dir="/d",
        sources=SourceFiles(), placement=runner, close=lambda: None,
    )  # fmt: skip


def facts(
    answers: dict[str, Answer],
    argv: tuple[str, ...] = ("python3", "x.py"),
    *,
    replay: bool = False,
    lines: bool = False,
) -> Facts:
    request = RunbookRequest(runbook="b", replay=Path("kept") if replay else None)
    runbook = Runbook(name="b", title="B", steps=(), requires=Requires(lineinfo=lines))
    return gather_facts(request, place(Programs(answers), Binaries()), runbook, argv, interactive=False)


def test_versions_are_those_of_the_workloads_python() -> None:
    told = '{"vllm": "0.33.0+cu130", "torch": "2.14.0", "nvidia-cuda-runtime": "13.0.96"}'
    found = facts({"python3": told, "nvcc": "Cuda compilation tools, release 12.4, V12.4.131"})
    assert (found.vllm, found.torch, found.cuda) == ("0.33.0+cu130", "2.14.0", "13.0")


def test_the_toolkit_answers_where_python_brings_no_runtime() -> None:
    found = facts({"python3": "{}", "nvcc": "Cuda compilation tools, release 12.4, V12.4.131"})
    assert (found.vllm, found.torch, found.cuda) == (None, None, "12.4")


def test_what_cannot_be_asked_is_not_made_up() -> None:
    away: Answer = HostNotAble("away")
    cases: tuple[dict[str, Answer], ...] = ({}, {"python3": away}, {"python3": "no json", "nvcc": away})
    for answers in cases:
        found = facts(answers)
        assert (found.vllm, found.torch, found.cuda) == (None, None, None)


def test_a_replay_tells_nothing_of_a_workload_that_ran_elsewhere() -> None:
    found = facts({"python3": '{"vllm": "0.33.0", "torch": "2.14.0"}'}, replay=True)
    assert (found.on, found.vllm, found.torch) == ("replay", None, None)


@pytest.mark.parametrize(("name", "carries"), [("inline_chain_sm90", True), ("no_lines_sm90", False)])
def test_lines_are_looked_for_only_where_the_runbook_requires_them(tmp_path: Path, name: str, carries: bool) -> None:
    program = tmp_path / "prog"
    program.write_bytes((CUBINS / f"{name}.cubin").read_bytes())
    program.chmod(0o755)
    for wanted, answer in ((True, carries), (False, None)):
        runbook = Runbook(name="b", title="B", steps=(), requires=Requires(lineinfo=wanted))
        request, argv = RunbookRequest(runbook="b"), (str(program),)
        found = gather_facts(request, place(RealPrograms(), BinaryFiles()), runbook, argv, interactive=False)
        assert found.lineinfo is answer


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with traps in it, and a vLLM that is installed in a place of its own."""
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    metadata = tmp_path / "site" / "vllm-0.31.7.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.31.7\n")
    (tmp_path / "site" / "vllm").mkdir()
    (tmp_path / "site" / "vllm" / "__init__.py").write_text("raise SystemExit('vllm was imported')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_real_python_is_asked_without_importing_anything(here: Path) -> None:
    argv = (sys.executable, "offline.py")
    python = workload_python(RealPrograms(), argv)
    assert python == sys.executable
    assert installed_versions(RealPrograms(), python, ("vllm", "no-such-package")) == {"vllm": "0.31.7"}
    assert workload_libraries(RealPrograms(), argv) == [str(here / "site" / "vllm")]


@pytest.mark.parametrize(
    "head",
    [
        "#!{python}\n",
        "#!{python} -sE\n",
        "#!/usr/bin/env -S {python}\n",
        "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n",
        '#!/bin/sh\nexec {python} fake.py "$@"\n',
    ],
)
def test_the_interpreter_behind_a_script_is_found(here: Path, head: str) -> None:
    script = here / "vllm"
    script.write_text(head.format(python=sys.executable))
    script.chmod(0o755)
    assert workload_python(RealPrograms(), ("nice", str(script), "serve", "m")) == sys.executable


def test_a_launcher_that_chooses_its_own_python_is_not_second_guessed() -> None:
    programs = Programs({"python3": "{}", "python3.12": "{}"})
    assert workload_python(programs, ("uv", "run", "python3.12", "x.py")) == "/usr/bin/python3"
    assert workload_python(programs, ("python3.12", "x.py")) == "/usr/bin/python3.12"


def test_a_compiled_program_has_no_python(tmp_path: Path) -> None:
    program = tmp_path / "prog"
    program.write_bytes((CUBINS / "no_lines_sm90.cubin").read_bytes())
    program.chmod(0o755)
    assert workload_python(RealPrograms(), (str(program),)) is None
    assert workload_libraries(RealPrograms(), (str(program), "--flag")) == [str(program)]
