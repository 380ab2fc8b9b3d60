"""What a user's command, environment or runbook sets to no use is told, with what replaced it."""

from pathlib import Path

import pytest

from tests.support.command_line import vdbg_env
from tests.support.shipped import RUNBOOKS, shipped
from tests.support.triage import LOGS
from tests.unit.run.test_steps import Bench, Programs
from vdbg_env.common.errors import HostNotAble
from vdbg_env.evidence.finding import HowKnown, Level
from vdbg_env.run.stale import installed_vllm
from vdbg_env.runbook.model import Run
from vdbg_env.runbook.workload import Settings, settings_of, stale_settings, told_before_start

SERVE = ("vllm", "serve", "M", "--swap-space", "4")


def test_a_stale_flag_is_a_warning_with_replacement_and_source() -> None:
    (setting,) = stale_settings(Settings(argv=SERVE), {}, "0.33.0")
    found = setting.finding
    assert (found.rule, found.level, found.how_known) == ("stale-setting", Level.WARNING, HowKnown.HOST_CHECK)
    assert found.message.startswith("the command: --swap-space: gone since vLLM 0.18.0")
    assert found.message.endswith("(vLLM 0.14.1 vllm/engine/arg_utils.py; gone in 0.18.0)")
    assert str(found.next_step) == "use --kv-offloading-size or --cpu-offload-gb"


def test_what_the_installed_release_still_reads_is_no_finding() -> None:
    assert stale_settings(Settings(argv=SERVE), {}, "0.14.1") == ()


def test_advice_that_a_variable_does_not_follow_names_the_variable() -> None:
    (setting,) = stale_settings(Settings(environment={"NCCL_CUMEM_ENABLE": "0"}), {}, None)
    assert setting.text.startswith("the environment: NCCL_CUMEM_ENABLE=0: vLLM set this from 0.4.3 to 0.10.1.1 only")


def test_a_dump_without_the_process_in_its_name_is_told_of() -> None:
    given = Settings(environment={"CUDA_COREDUMP_FILE": "/dumps/core.%t"})
    assert [s.name for s in stale_settings(given, {}, None)] == ["coredump-name-without-pid"]


def test_variables_of_no_table_are_not_our_business() -> None:
    environment = {"HISTORY": "pip install vllm --no-build-isolation", "HOME": "/root", "MY_VLLM": "1"}
    assert stale_settings(Settings(environment=environment), {}, None) == ()


def test_a_step_of_the_users_runbook_is_named() -> None:
    step = Run(id="odd", title="Odd", command="c", env={"VLLM_USE_V1": "1"}, engine_args={"swap_space": 4})
    found = stale_settings(Settings(), settings_of([step]), "0.33.0")
    assert [(s.where, s.name) for s in found] == [("step odd", "--swap-space"), ("step odd", "VLLM_USE_V1")]


@pytest.mark.parametrize("release", ["0.12.0", "0.18.0", "0.33.0", None])
def test_no_shipped_runbook_sets_anything_to_no_use_for_good(release: str | None) -> None:
    for path in RUNBOOKS.glob("*.yaml"):
        assert stale_settings(Settings(), settings_of(shipped(path.stem).steps), release) == (), path.name


def test_the_release_is_asked_only_where_there_is_something_to_ask_about() -> None:
    def never() -> str | None:
        raise AssertionError("asked")

    assert told_before_start(shipped("model-load"), Settings(argv=("vllm", "serve", "M")), never) == ()
    (line,) = told_before_start(shipped("model-load"), Settings(argv=SERVE), lambda: "0.33.0")
    assert "instead: --kv-offloading-size" in line
    assert told_before_start(shipped("model-load"), Settings(argv=SERVE), lambda: "0.12.0") == ()


@pytest.mark.parametrize(
    ("answer", "release"),
    [('{"vllm": "0.33.0+cu130"}', "0.33.0"), ("{}", None), ("no json", None), (HostNotAble("away"), None)],
)
def test_the_release_installed_is_read_from_its_metadata(answer: str | HostNotAble, release: str | None) -> None:
    assert installed_vllm(Programs({"python3": answer})) == release


def test_collect_env_makes_findings_of_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Programs({"python3": '{"vllm": "0.33.0"}'}), environment={"VLLM_USE_V1": "1"})
    result = bench.use("collect-env")
    assert result.results["stale_variables"] == ["VLLM_USE_V1"]
    assert [(f.rule, f.step) for f in result.findings] == [("stale-setting", "s")]


def test_the_plan_tells_before_anything_is_started() -> None:
    ran = vdbg_env("runbook", "model-load", "--plan", "--", *SERVE)
    assert ran.status == 0
    assert "stale: the command: --swap-space" in ran.stderr


def test_triage_tells_what_replaced_a_name_that_the_log_calls_unknown() -> None:
    ran = vdbg_env("triage", str(LOGS / "dev" / "ima-unrelated-warning-first.log"))
    assert "note: has no effect: VLLM_ATTENTION_BACKEND: gone since vLLM 0.18.0" in ran.stdout
    assert "instead: --attention-backend" in ran.stdout
    assert "instead: --kv-offloading-size" in vdbg_env("triage", str(LOGS / "held-out" / "benign-bad-flag.log")).stdout


def test_a_program_in_the_image_is_told_of_before_it_is_looked_for() -> None:
    ran = vdbg_env("run", "--image", "not-here:1", "-e", "VLLM_USE_V1=1", "--", *SERVE)
    assert "stale: the command: --swap-space" in ran.stderr
    assert "stale: the environment: VLLM_USE_V1" in ran.stderr
