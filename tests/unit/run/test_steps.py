"""The built-in steps and readers give what the catalogue promises, from genuine files in a run directory."""

import gzip
import inspect
import json
import pickle
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.builders.core_builder import exited_warps_core, hang_core, illegal_address_core
from tests.support import reports
from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env.common.programs import Completed
from vdbg_env.crash.files import BinaryFile, CoreFiles
from vdbg_env.evidence.finding import Artifact, Death, Ended, EndedBy, Level, Observation
from vdbg_env.record.progress import Progress
from vdbg_env.record.redactor import Redactor
from vdbg_env.report.pages import write_report
from vdbg_env.run import core_code
from vdbg_env.run.builtin_steps import may_trace
from vdbg_env.run.core_code import alike
from vdbg_env.run.library import BuiltinSteps, builtins, catalogue
from vdbg_env.runbook.model import Builtin, Data, Kind, Runbook
from vdbg_env.runbook.state import Facts, Finish, RunState, StepResult, UseBuiltin, Verdict
from vdbg_env.runbook.workload import Inputs
from vdbg_env.supervisor.proc import boot_id

CUBINS = Path(__file__).parents[2] / "data" / "cubins"
Answer = str | HostNotAble


@dataclass
class Programs:
    """A ProgramRunner whose programs say what the test wrote down."""

    answers: Mapping[str, Answer] = field(default_factory=dict)
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def head(self, program: str) -> bytes:
        return b""

    def which(self, program: str) -> str | None:
        return f"/usr/bin/{program}" if program in self.answers else None

    def run(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> Completed:
        self.asked.append(tuple(argv))
        answer = self.answers[Path(argv[0]).name]
        if isinstance(answer, HostNotAble):
            raise answer
        code = 1 if answer.startswith("FAILED") else 0
        return Completed(argv=tuple(argv), code=code, stdout=answer, stderr="")


class Binaries:
    @contextmanager
    def open(self, target: str) -> Iterator[Iterator[BinaryFile]]:
        yield iter([BinaryFile(name=target, data=Path(target).read_bytes())])


@dataclass
class Bench:
    """A run directory with what a step left in it, and the built-ins over it."""

    directory: Path
    programs: Programs = field(default_factory=Programs)
    environment: dict[str, str] = field(default_factory=dict)
    artifacts: dict[str, tuple[Artifact, ...]] = field(default_factory=dict)
    ended: Ended = field(default_factory=lambda: Ended(by=EndedBy.EXIT, code=0))

    def steps(self) -> BuiltinSteps:
        return BuiltinSteps(
            run_directory=self.directory,
            began_s=100.0,
            programs=self.programs,
            cores=CoreFiles(),
            binaries=Binaries(),
            environment=self.environment,
            write_report=lambda formats: write_report(reports.FULL, self.directory, formats),
            redact=Redactor((b"a-planted-secret",)).text,
        )

    @property
    def progress(self) -> Progress:
        book = Runbook(name="b", title="B", steps=())
        decision = Finish(verdict=Verdict.INCONCLUSIVE, why="")
        state = RunState(
            runbook=book, inputs=Inputs({"argv": ["prog"]}), facts=Facts(driver="580.1"), decision=decision
        )
        return Progress(state=state)

    def put(self, name: str, data: bytes | str) -> str:
        path = self.directory / "steps" / "s" / "1" / "localhost-0" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return str(path.relative_to(self.directory))

    def leave(self, artifact: str, name: str, data: bytes | str) -> None:
        path = self.put(name, data)
        self.artifacts[artifact] = (*self.artifacts.get(artifact, ()), Artifact(name=artifact, path=path, size=1))

    def use(self, name: str, **parameters: Data) -> StepResult:
        order = UseBuiltin(step="s", name=name, version=1, parameters=parameters)
        return self.steps().use(order, self.progress)

    def read(self, name: str, **parameters: Data) -> StepResult:
        seen = Observation(
            step="s",
            attempt=1,
            ended=self.ended,
            duration_s=1.0,
            artifacts=self.artifacts,
            directory="steps/s/1/localhost-0",
        )
        reading = self.steps().read(Builtin(uses=f"builtin/{name}@v1", parameters=parameters), (seen,), self.progress)
        return StepResult(step="s", results=reading.results, findings=reading.findings, notes=reading.notes)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


KINDS: Mapping[Kind, type | tuple[type, ...]] = {
    "string": str,
    "int": int,
    "float": float,
    "bool": bool,
    "list": list,
    "any": object,
}


def promised(name: str, result: StepResult) -> StepResult:
    """Hold a result to the catalogue: no name and no kind that lint does not know of."""
    contract = catalogue().find(name, 1)
    assert contract
    for key, value in result.results.items():
        assert isinstance(value, KINDS[contract.results[key]]), f"{name}.{key} is {value!r}"
    assert all(finding.step == "s" for finding in result.findings)
    return result


def test_a_builtin_is_in_the_file_of_its_role() -> None:
    for found in builtins().values():
        assert found.work.__module__ == f"vdbg_env.run.builtin_{found.contract.role}s", found.contract.name


def test_no_parameter_is_promised_that_nothing_reads() -> None:
    for found in builtins().values():
        text = inspect.getsource(found.work) + inspect.getsource(sys.modules[found.work.__module__]).split("def ", 1)[1]
        text += inspect.getsource(core_code)
        assert [name for name in found.contract.parameters if f'"{name}"' not in text] == [], found.contract.name


def test_cores_are_read_and_the_one_with_the_fault_leads(bench: Bench) -> None:
    paths: list[Data] = [bench.put("core.cuda.a", hang_core()), bench.put("core.cuda.b", illegal_address_core())]
    done = promised("decode-gpu-core", bench.use("decode-gpu-core", cores=paths))
    assert done.results["exception"] == "Warp Illegal Address"
    assert str(done.results["source"]).startswith("/src/kernels/inline_chain.cu:3 in void store_leaf<float, 0>")
    assert done.results["cores"] == 2 and done.results["has_lines"] is True
    assert [f.rule for f in done.findings] == ["gpu-core-warp-illegal-address", "gpu-core-hang"]
    assert done.findings[0].artifact == paths[1]


def test_a_core_of_a_hang_tells_of_spinning_and_of_no_exception(bench: Bench) -> None:
    paths: list[Data] = [bench.put("core.cuda.gz", gzip.compress(hang_core()))]
    results = promised("decode-gpu-core", bench.use("decode-gpu-core", cores=paths)).results
    assert "exception" not in results and results["spinning"] is True
    assert results["warps"] == 16


def test_a_file_that_is_no_core_is_noted_and_hides_nothing(bench: Bench) -> None:
    paths: list[Data] = [bench.put("core.cuda.x", b"rubbish"), bench.put("core.cuda.y", exited_warps_core())]
    done = bench.use("decode-gpu-core", cores=paths)
    assert done.results["cores"] == 1
    assert any(note.startswith(f"{paths[0]}: ") for note in done.notes)
    assert bench.use("decode-gpu-core", cores=[]).notes == ("no core was given",)


def test_a_path_out_of_the_run_directory_is_refused(bench: Bench) -> None:
    with pytest.raises(BadInput, match="leads out of the run directory"):
        bench.use("decode-gpu-core", cores=["../../etc/passwd"])


GDB = (Path(__file__).parents[2] / "data" / "cores" / "synthetic_sm90_r575_layout.cuda-gdb-12.4.txt").read_text()


@pytest.mark.parametrize(
    ("said", "opinion"),
    [
        (GDB.replace("cudk.cu:3", "inline_chain.cu:3"), "cuda-gdb agrees: Warp Illegal Address at inline_chain.cu:3"),
        (GDB, "cuda-gdb disagrees: it names cudk.cu:3, we inline_chain.cu:3"),
        (
            "warning: No exception was found on any device\n",
            "cuda-gdb finds no exception, we find Warp Illegal Address",
        ),
        (HostNotAble("cuda-gdb did not end"), "cuda-gdb could not be asked: cuda-gdb did not end"),
    ],
    ids=["agrees", "disagrees", "finds nothing", "hangs"],
)
def test_cuda_gdb_is_heard_beside_our_own_reader(bench: Bench, said: Answer, opinion: str) -> None:
    bench.programs = Programs({"cuda-gdb": said})
    done = bench.use("decode-gpu-core", cores=[bench.put("core.cuda.a", illegal_address_core())])
    assert any(note.startswith(opinion) for note in done.notes), done.notes
    if isinstance(said, str):
        assert (bench.directory / "steps" / "s" / "cuda-gdb.txt").read_text() == said


def test_nvdisasm_shows_the_instruction_and_may_disagree(bench: Bench) -> None:
    listing = (
        "//--------------------- .text._Z4kernIfEvPT_iS0_ ---\n"
        '\t//## File "/x/inline_chain.cu", line 3 inlined at "y", line 8\n\t//## File "y", line 8\n'
        "        /*7fffd9001140*/                   STG.E desc[UR4][R8.64], R3 ;\n"
    )
    bench.programs = Programs({"nvdisasm": listing})
    done = bench.use("decode-gpu-core", cores=[bench.put("core.cuda.a", illegal_address_core())])
    assert any(note.startswith("nvdisasm agrees on the line: STG.E desc[UR4][R8.64], R3 at") for note in done.notes)
    assert "> 0x7fffd9001140  STG.E" in (bench.directory / "steps" / "s" / "fault.sass").read_text()


def test_a_kernel_without_lines_is_found_in_a_library_that_has_them(bench: Bench) -> None:
    core = bench.put("core.cuda.a", illegal_address_core(lines=False))
    done = bench.use("locate", cores=[core], binaries=[str(CUBINS / "inline_chain_sm90.cubin")])
    promised("locate", done)
    assert str(done.results["source"]).startswith("/src/kernels/inline_chain.cu:3 in ")
    assert done.findings[0].chain[-1].line == 19
    kernel = done.findings[0].kernel
    named = bench.use("locate", cores=[core], kernel=kernel, binaries=[str(CUBINS / "inline_chain_sm90.cubin")])
    assert named.results == done.results
    other = bench.use("locate", cores=[core], kernel="void other()", binaries=[str(CUBINS / "inline_chain_sm90.cubin")])
    assert (other.results, other.notes) == (
        {},
        ("no core with a fault inside a known kernel, or inside the one named, was given",),
    )


@pytest.mark.parametrize("name", ["no_lines_sm90", "inline_chain_sm80", "shared_leaf_sm90"])
def test_a_library_without_that_code_or_its_lines_does_not_answer(bench: Bench, name: str) -> None:
    core = bench.put("core.cuda.a", illegal_address_core(lines=False))
    done = bench.use("locate", cores=[core], binaries=[str(CUBINS / f"{name}.cubin")])
    assert "source" not in done.results
    assert "none holds kern<float> with lines" in done.notes[-1]


def test_code_of_another_build_is_not_taken_for_the_same() -> None:
    code = bytes(range(256)) * 4
    moved = bytes([code[0] ^ 1]) + code[1:]
    assert alike(code, moved) and not alike(code, code[:-16]) and not alike(b"", b"")
    assert not alike(code, bytes(len(code)))


SMI = "NVIDIA H200, 580.82.07, 2, Disabled\nNVIDIA H200, 580.82.07, [N/A], Enabled\n"


def test_the_log_of_a_bad_end_is_triaged(bench: Bench) -> None:
    bench.put("stdout", "Processed 16 requests\n")
    bench.put("stderr", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    bench.ended = Ended(by=EndedBy.EXIT, code=1)
    results = promised("triage", bench.read("triage")).results
    assert (results["failure"], results["runbook"], results["line"]) == ("out-of-memory", "out-of-memory", 1)
    assert "Tried to allocate" in str(results["text"])


@pytest.mark.parametrize("by", [EndedBy.EXIT, EndedBy.MATCH])
def test_a_log_of_a_good_end_or_of_one_we_made_is_not_triaged(bench: Bench, by: EndedBy) -> None:
    bench.put("stderr", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    bench.ended = Ended(by=by, code=0)
    assert bench.read("triage").results == {}


def test_a_bad_end_without_a_known_failure_has_no_runbook(bench: Bench) -> None:
    bench.put("stderr", "ValueError: not enough values to unpack\n")
    bench.ended = Ended(by=EndedBy.EXIT, code=1)
    results = promised("triage", bench.read("triage")).results
    assert results["failure"] == "not-a-gpu-failure" and "runbook" not in results


def test_the_host_is_looked_at_before_anything_starts(bench: Bench) -> None:
    xid = "[ 12.5] NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=x, GPU has fallen off the bus.\n"
    bench.programs = Programs({"nvidia-smi": SMI + "| CUDA Version: 13.0 |", "dmesg": xid})
    bench.environment = {"CUDA_LAUNCH_BLOCKING": "1"}
    results = promised("gpu-health", bench.use("gpu-health")).results
    assert results["driver"] == "580.82.07" and results["cuda"] == "13.0"
    assert results["ecc_errors"] == 2 and results["mig"] is True and results["xids"] == [79]
    rules = {f.rule for f in bench.use("gpu-health").findings}
    assert "host-variable-left-over" in rules and len(rules) > 1


def test_a_machine_without_a_driver_is_told_as_such_and_a_closed_kernel_log_is_no_clean_bill(bench: Bench) -> None:
    bench.programs = Programs({"dmesg": "FAILED"})
    done = bench.use("gpu-health")
    assert done.results["gpus"] == 0 and "xids" not in done.results
    assert any("may not be read here" in note for note in done.notes)


def test_a_process_ended_for_memory_before_the_run_is_told_and_is_no_finding_of_it(bench: Bench) -> None:
    bench.programs = Programs({"dmesg": "[12.5] Out of memory: Killed process 6873 (python) total-vm:24803360kB"})
    result = bench.use("gpu-health")
    assert "before this run the kernel OOM-killed python (6873)" in result.notes
    assert not result.findings


def test_what_a_program_did_to_a_gpu_before_the_run_is_no_finding_of_it_and_a_broken_gpu_is(bench: Bench) -> None:
    line = "[ {}] NVRM: Xid (PCI:0000:1b:00): {}, pid=77, name=python, Ch 08"
    log = [line.format(stamp, code) for stamp, code in (("12.5", 31), ("12.6", 45), ("13.0", 48), ("101.0", 13))]
    bench.programs = Programs({"dmesg": "\n".join(log)})
    result = bench.use("gpu-health")
    assert [f.rule for f in result.findings] == ["xid-48", "xid-13"]
    assert "before this run: Xid 31 of python (77) on 0000:1b:00, GPU memory page fault (MMU fault)" in result.notes
    assert result.results["xids"] == [31, 45, 48, 13]


@pytest.mark.parametrize(
    ("namespace", "led_by"), [(0xEFFFFFFC, "(python3)"), (4026532200, "(launch)"), (None, "(launch)")]
)
def test_an_xid_of_a_program_that_the_run_did_not_start_is_no_finding_of_it(
    bench: Bench, namespace: int | None, led_by: str
) -> None:
    """On an H100 a neighbour's page fault was told as the cause of a program that had no memory left."""
    folder = bench.directory / "steps" / "guarded" / "1" / "localhost-0"
    folder.mkdir(parents=True)
    (folder / "supervisor.json").write_text(
        '{"state": "waiting", "pid": 4255}\n' + json.dumps({"state": "armed", "pid_namespace": namespace}) + "\n"
    )
    (folder / "processes.txt").write_text(f"{boot_id()}\n4256 7756\n")
    line = "[100.{}] NVRM: Xid (PCI:0000:00:06): {}, pid={}, name={}, channel 0x00000019"
    lines = [
        line.format(1, 31, 3986, "launch"),
        line.format(2, 31, 4256, "python3"),
        line.format(3, 48, 3986, "launch"),
    ]
    bench.programs = Programs({"dmesg": "\n".join(lines)})
    result = bench.use("gpu-health")
    assert [f.rule for f in result.findings] == ["xid-31", "xid-48"]
    assert led_by in result.findings[0].message
    doubt = "in this run or another: process numbers are not comparable here"
    assert [doubt in found.message for found in result.findings] == [led_by == "(launch)", False]
    assert result.findings[0].confidence == (0.6 if led_by == "(launch)" else 0.8)
    told = "of no process that was seen in this run: Xid 31 of launch (3986) on 0000:00:06, GPU memory page fault"
    assert any(told in note for note in result.notes) is (led_by == "(python3)")
    assert result.results["xids"] == [31, 31, 48]


@pytest.mark.parametrize("beside", [True, False])
def test_an_xid_without_a_process_beside_another_programs_is_a_doubt(bench: Bench, beside: bool) -> None:
    folder = bench.directory / "steps" / "guarded" / "1" / "localhost-0"
    folder.mkdir(parents=True)
    (folder / "supervisor.json").write_text(json.dumps({"state": "armed", "pid_namespace": 0xEFFFFFFC}) + "\n")
    (folder / "processes.txt").write_text(f"{boot_id()}\n4256 7756\n")
    lines = ["[100.1] NVRM: Xid (PCI:0000:00:06): 31, Ch 00000019"]
    lines += ["[100.2] NVRM: Xid (PCI:0000:00:06): 31, pid=3986, name=launch, Ch 00000019"] * beside
    bench.programs = Programs({"dmesg": "\n".join(lines)})
    (found,) = bench.use("gpu-health").findings
    level, confidence = (Level.WARNING, 0.4) if beside else (Level.ERROR, 0.6)
    assert (found.rule, found.level, found.confidence) == ("xid-31", level, confidence)
    assert ("may be of another program" in found.message) is beside


@pytest.mark.parametrize("namespace", [0xEFFFFFFC, 4026532200])
def test_the_xids_of_the_runs_own_processes_are_told_alone(bench: Bench, namespace: int) -> None:
    """On an H100 a store that failed as its program ended left status 0 and one such line."""
    folder = bench.directory / "steps" / "guarded" / "1" / "localhost-0"
    folder.mkdir(parents=True)
    (folder / "supervisor.json").write_text(json.dumps({"state": "armed", "pid_namespace": namespace}) + "\n")
    (folder / "processes.txt").write_text(f"{boot_id()}\n4256 7756\n")
    line = "[{}] NVRM: Xid (PCI:0000:00:06): {}, pid={}, name=python3, channel 0x00000019"
    lines = [line.format("12.5", 13, 4256), line.format("100.1", 31, 3986), line.format("100.2", 31, 4256)]
    bench.programs = Programs({"dmesg": "\n".join([*lines, "[100.3] NVRM: Xid (PCI:0000:00:06): 48"])})
    result = bench.use("own-xids")
    known = namespace == 0xEFFFFFFC
    assert result.results == ({"xids": [31]} if known else {})
    assert [found.rule for found in result.findings] == (["xid-31"] if known else [])


def test_a_process_ended_for_memory_during_the_run_is_a_finding(bench: Bench) -> None:
    bench.programs = Programs({"dmesg": "[100.5] Out of memory: Killed process 6873 (python) total-vm:24803360kB"})
    assert [f.rule for f in bench.use("gpu-health").findings] == ["kernel-log-oom-kill"]


@pytest.mark.parametrize(("driver", "asked"), [("580.65.06", False), ("615.10", True), ("[N/A]", False)])
def test_a_driver_that_has_operational_events_is_asked_after_a_failure(bench: Bench, driver: str, asked: bool) -> None:
    """The answer is a stand-in: no driver that has them was ever met, so its text is kept and not read."""

    class Driver(Programs):
        def run(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> Completed:
            done = super().run(argv, timeout_s=timeout_s)
            events = argv[1:] == ["event-log"]
            return replace(done, stdout="event 1: a link was retrained") if events else done

    bench.programs = Driver({"nvidia-smi": SMI.replace("580.82.07", driver)})
    notes = bench.use("gpu-health", events=True).notes
    kept = bench.directory / "steps" / "s" / "gpu-event-log.txt"
    assert kept.exists() is asked
    assert any("steps/s/gpu-event-log.txt" in note for note in notes) is asked
    if asked:
        assert kept.read_text() == "event 1: a link was retrained"
    bench.programs.asked.clear()
    bench.use("gpu-health")
    assert not any("event-log" in command for command in bench.programs.asked)


def test_what_the_limit_of_another_container_ended_is_not_told(bench: Bench) -> None:
    killed = "Memory cgroup out of memory: Killed process {} (python) total-vm:24803360kB, anon-rss:4194304kB"
    of = "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/docker/ab12,task_memcg=/docker/ab12,task=python,pid={},uid=0"
    log = [f"[{stamp}] {text.format(pid)}" for stamp, pid in (("12.5", 41), ("100.5", 42)) for text in (of, killed)]
    bench.programs = Programs({"dmesg": "\n".join(log)})
    result = bench.use("gpu-health")
    assert not result.findings
    assert not any("lack of memory" in note for note in result.notes)


def test_a_driver_that_does_not_answer_gives_no_figures(bench: Bench) -> None:
    bench.programs = Programs({"nvidia-smi": HostNotAble("nvidia-smi did not end within 60 seconds")})
    done = bench.use("gpu-health")
    assert "gpus" not in done.results
    assert any("often a GPU that is gone" in note for note in done.notes)


@pytest.mark.parametrize(("capabilities", "scope", "may"), [("80000", "1", True), ("0", "0", True), ("0", "1", False)])
def test_tracing_needs_the_capability_or_an_open_scope(
    tmp_path: Path, capabilities: str, scope: str, may: bool
) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "status").write_text(f"Name:\tx\nCapEff:\t{capabilities}\n")
    (tmp_path / "sys" / "kernel" / "yama").mkdir(parents=True)
    (tmp_path / "sys" / "kernel" / "yama" / "ptrace_scope").write_text(f"{scope}\n")
    assert may_trace(tmp_path) is may
    assert may_trace(tmp_path / "nowhere") is None


def test_versions_come_from_the_workloads_own_interpreter(bench: Bench) -> None:
    bench.programs = Programs({"python3": json.dumps({"torch": "2.13.0", "triton": "3.5"})})
    bench.environment = {"NCCL_DEBUG": "INFO", "HOME": "/root"}
    done = promised("collect-env", bench.use("collect-env"))
    assert done.results == {"torch": "2.13.0", "driver": "580.1"}
    assert "NCCL_DEBUG=INFO" in done.notes and not any("HOME" in note for note in done.notes)


def test_an_interpreter_that_talks_nonsense_is_noted(bench: Bench) -> None:
    bench.programs = Programs({"python3": "FAILED"})
    assert any("could not be asked" in note for note in bench.use("collect-env").notes)


def test_the_report_is_written_in_the_formats_asked_for(bench: Bench) -> None:
    done = promised("report", bench.use("report", formats=["html", "json", "poem"]))
    assert done.results["files"] == ["report.html", "report.json"]
    assert "poem is not a format" in done.notes[0]
    assert json.loads((bench.directory / "report.json").read_text())["schema"] == "vdbg-env/run/v1"
    assert bench.use("report").results["files"] == ["report.html", "report.md", "report.json"]
    assert not list(bench.directory.glob(".*.new"))


CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
DIRTY = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at store(float *, long)+0x120 in rope.cu:5
=========     by thread (3,0,0) in block (1,0,0)
=========     Access to 0x147267fff80 is out of bounds
========= ERROR SUMMARY: 1 error
"""


def test_the_sanitizer_is_judged_by_its_summary_lines(bench: Bench) -> None:
    bench.leave("reports", "memcheck.1.log", CLEAN)
    bench.leave("reports", "memcheck.2.log", DIRTY)
    bench.leave("reports", "memcheck.3.log", "========= COMPUTE-SANITIZER\n")
    done = promised("sanitizer-report", bench.read("sanitizer-report", artifact="reports"))
    assert done.results["summary"] is True and done.results["errors"] == 1
    assert done.results["source"] == "rope.cu:5 in store(float *, long)"
    assert done.findings[0].artifact == "steps/s/1/localhost-0/memcheck.2.log"
    assert len(done.findings) == 1 and "memcheck.3.log: no SUMMARY line" in done.notes[0]


def test_a_sanitizer_without_a_summary_has_failed_itself(bench: Bench) -> None:
    bench.put("stdout", "========= Error: process didn't terminate successfully\n")
    done = promised("sanitizer-report", bench.read("sanitizer-report", artifact="reports"))
    assert done.results == {"summary": False}
    assert [f.rule for f in done.findings] == ["sanitizer-failed"]


TRACEBACK = """\
Traceback (most recent call last):
  File "/app/serve.py", line 12, in forward
    rope(q)
  File "/site/torch/_ops.py", line 9, in __call__
    return self._op(*args)
torch.AcceleratorError: CUDA error: an illegal memory access was encountered
"""


def test_the_python_frame_outside_of_torch_is_named(bench: Bench) -> None:
    bench.put("stderr", TRACEBACK)
    done = promised("python-traceback", bench.read("python-traceback"))
    assert done.results["source"] == "/app/serve.py:12 in forward" and done.results["frame"] == "forward"
    assert str(done.results["error"]).startswith("torch.AcceleratorError: CUDA error")


def test_the_stack_of_a_rank_that_aborts_is_not_shown_for_the_one_that_raised_a_cuda_error(bench: Bench) -> None:
    abort = (
        'Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n  File "w.py", line 16 in wait\n'
    )
    bench.put("stderr", TRACEBACK + abort)
    assert bench.read("python-traceback").results["crashed_in"] == "w.py:16 in wait", "of one process it is its own"
    worker = "".join(f"(Worker_TP5 pid=7) {line}\n" for line in TRACEBACK.splitlines())
    bench.put("stderr", worker + abort)
    done = promised("python-traceback", bench.read("python-traceback"))
    assert done.results["failed_process"] == "Worker_TP5" and done.results["failed_rank"] == 5
    assert not {"signal", "crashed_in", "crashed_stack"} & done.results.keys()


def test_of_several_ranks_the_one_that_failed_first_is_read(bench: Bench) -> None:
    """It was the last rank's traceback and the first rank's signal: watchdogs that had waited for another one."""
    texts = ("RuntimeError: NCCL timed out", "ZeroDivisionError: division by zero", "RuntimeError: NCCL timed out")
    signals = ("Aborted", "Segmentation fault", "Aborted")
    head = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
    ranks = []
    for rank, (text, signal) in enumerate(zip(texts, signals, strict=True)):
        bench.put(f"../localhost-{rank}/stderr", f"{head}{text}\nFatal Python error: {signal}\n\n")
        ended = Ended(by=EndedBy.SIGNAL, signal=11 if rank == 1 else 6)
        folder = f"steps/s/1/localhost-{rank}"
        took = 1.0 if rank == 1 else 9.0
        ranks.append(Observation(step="s", attempt=1, rank=rank, ended=ended, duration_s=took, directory=folder))
    reading = bench.steps().read(Builtin(uses="builtin/python-traceback@v1"), tuple(ranks), bench.progress)
    assert reading.results["error"] == "ZeroDivisionError: division by zero"
    assert reading.results["signal"] == "Segmentation fault"


def test_ranks_whose_peer_died_do_not_name_the_failure(bench: Bench) -> None:
    """Fifteen ranks said that NCCL failed, and the run went on to runbook nccl-failure."""
    nccl = "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:3384, remote process exited or there was a network error"
    head = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
    ranks = []
    for rank, text in enumerate((nccl, "ZeroDivisionError: division by zero", nccl)):
        bench.put(f"../localhost-{rank}/stderr", f"{head}{text}\n")
        folder, took = f"steps/s/1/localhost-{rank}", 1.0 if rank == 1 else 9.0
        ended = Ended(by=EndedBy.EXIT, code=1)
        ranks.append(Observation(step="s", attempt=1, rank=rank, ended=ended, duration_s=took, directory=folder))
    triage = Builtin(uses="builtin/triage@v1")
    results = bench.steps().read(triage, tuple(ranks), bench.progress).results
    assert str(results["text"]).strip() == "ZeroDivisionError: division by zero" and "runbook" not in results
    only_nccl = tuple(seen for seen in ranks if seen.rank != 1)
    assert bench.steps().read(triage, only_nccl, bench.progress).results["runbook"] == "nccl-failure"


def test_a_segfault_of_another_program_in_the_kernel_log_is_not_the_workloads(bench: Bench) -> None:
    bench.put("stderr", "Traceback (most recent call last):\n  File 'a.py', line 1, in f\nValueError: no such layer\n")
    bench.put("kernel.log", "6,1,2,-;python3[4031]: segfault at 8 ip 00007f00 sp 00007f01 error 4 in libc.so.6[7f]\n")
    triage = Builtin(uses="builtin/triage@v1")
    failed = Observation(
        step="s", attempt=1, ended=Ended(by=EndedBy.EXIT, code=1), duration_s=1.0, directory="steps/s/1/localhost-0"
    )
    assert "ValueError" in str(bench.steps().read(triage, (failed,), bench.progress).results["text"])
    crashed = replace(failed, deaths=(Death(pid=77, name="python3", signal=11),))
    results = bench.steps().read(triage, (crashed,), bench.progress).results
    assert results["runbook"] == "host-crash" and "segfault at 8" in str(results["text"])


def test_what_the_driver_said_of_its_dump_is_read_out_of_binary_noise(bench: Bench) -> None:
    text = (
        "[06:43:15.209195] coredump: Detected an exception of type CUDBG_EXCEPTION_WARP_ILLEGAL_ADDRESS (14)\n"
        "[06:43:15.209206] coredump:   - SM: 124\ncoredump: Writing ELF file to core.cuda.n1.7\n"
        "coredump: All done (took 00s)\n"
    )
    bench.put("stderr", b"\x00\xff\xfe binary\n" * 3 + text.encode())
    done = promised("coredump-progress", bench.read("coredump-progress"))
    assert done.results == {
        "exceptions": ["CUDBG_EXCEPTION_WARP_ILLEGAL_ADDRESS"],
        "files": ["core.cuda.n1.7"],
        "done": True,
    }
    assert str(done.findings[0].next_step) == "read the dump: vdbg-env core FILE"  # where it lies is not known yet
    bench.leave("cores", "core.cuda.n1.7", b"a dump")
    (found,) = bench.read("coredump-progress").findings
    assert str(found.next_step) == "read the dump: vdbg-env core steps/s/1/localhost-0/core.cuda.n1.7"


def test_nccls_own_files_and_the_output_are_read_alike(bench: Bench) -> None:
    bench.leave("nccl", "nccl.n1.7.log", "n1:7:9 [0] NCCL INFO comm 0x1 rank 0 nranks 4 cudaDev 0\n")
    bench.put("stdout", "n1:8:9 [1] NCCL WARN Cuda failure 'an illegal memory access was encountered'\n")
    done = promised("nccl-log", bench.read("nccl-log"))
    assert done.results["ranks"] == 4
    assert done.results["warnings"] == ["Cuda failure 'an illegal memory access was encountered'"]


def test_the_last_open_call_of_a_trace_is_told(bench: Bench) -> None:
    bench.leave("trace", "VLLM_TRACE_FUNCTION_for_process_7", "x Call to wait in /v/c.py:2 from run in /v/a.py:4\n")
    done = promised("function-trace", bench.read("function-trace", artifact="trace"))
    assert done.results == {"last_call": "wait", "source": "/v/c.py:2 in wait"}


def test_the_stacks_of_a_hang_are_told_by_process(bench: Bench) -> None:
    bench.put("hang.txt", 'process 7 python (parent 1, state S)\nProcess 7: python x\nThread 7 (idle): "MainThread"\n')
    done = promised("hang-stacks", bench.read("hang-stacks"))
    assert done.results == {"waiting_in": [], "processes": 1}


@pytest.mark.parametrize("name", [name for (name, _), found in builtins().items() if found.contract.role == "reader"])
def test_a_reader_that_finds_nothing_makes_nothing_up(bench: Bench, name: str) -> None:
    results = promised(name, bench.read(name)).results
    assert [value for value in results.values() if value] == []


def test_the_rank_that_is_missing_from_a_collective_is_read_from_pytorchs_dumps(bench: Bench) -> None:
    def dump(*names: str) -> bytes:
        entries = [{"collective_seq_id": n, "profiling_name": name} for n, name in enumerate(names, 1)]
        return pickle.dumps({"entries": entries}, protocol=2)

    bench.leave("flight", "flight.0", dump("nccl:all_reduce", "nccl:all_gather"))
    bench.leave("flight", "flight.1", dump("nccl:all_reduce"))
    bench.leave("flight", "flight.2", pickle.dumps(print))
    done = promised("flight-recorder", bench.read("flight-recorder"))
    assert done.results["dumps"] == 2
    assert str(done.results["missing"]).endswith("missing: rank 1 (its last is 1, all_reduce)")
    assert [note.partition(" was not read")[0] for note in done.notes] == ["steps/s/1/localhost-0/flight.2"]
