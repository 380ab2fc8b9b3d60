"""`builtin/collect-env@v1`: the versions in play and whether they fit, the variables that count, the stale ones."""

from __future__ import annotations

from collections.abc import Mapping

from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult
from vdbg_env.application.knowledge.installed_packages import installed_versions, toolkit_release, workload_python
from vdbg_env.application.knowledge.stale_settings import Settings, settings_of, stale_settings
from vdbg_env.application.knowledge.version_match import RUNTIMES, Versions, mismatches, shipped_tables
from vdbg_env.common.errors import HostNotAble
from vdbg_env.runbook.catalogue import BuiltinContract
from vdbg_env.runbook.state import ResultValue

_PACKAGES = (
    "vllm", "torch", "triton", "flashinfer-python", "transformers", "nvidia-nccl-cu12", "nvidia-nccl-cu13", *RUNTIMES
)  # fmt: skip

CONTRACT = BuiltinContract(
    name="collect-env",
    version=1,
    role="step",
    does="Records the installed versions, the GPUs, and the variables that change behaviour.",
    by_hand=("vllm collect-env", "env | grep -E '^(CUDA|VLLM|NCCL|TORCH|PYTORCH|TRITON|FLASHINFER)_'"),
    results={
        "vllm": "string",
        "torch": "string",
        "cuda": "string",
        "driver": "string",
        "toolkit": "string",
        "mismatches": "list",
        "stale_variables": "list",
    },
)


def work(context: BuiltinContext) -> BuiltinResult:
    """Ask the workload's own interpreter what is installed; a program without Python has no versions to tell.

    What the workload's command line, the environment and the runbook's steps set is compared with that vLLM; driver,
    toolkit, torch and vLLM are compared with one another.
    """
    results: dict[str, ResultValue] = {}
    notes: list[str] = []
    versions = _versions(context, notes)
    results |= {name: versions[name] for name in ("vllm", "torch") if name in versions}
    known = {"driver": context.facts.driver, "cuda": context.facts.cuda}
    results |= {name: value for name, value in known.items() if value}
    given = Settings(argv=context.workload, environment=context.environment)
    stale = stale_settings(given, settings_of(context.steps), versions.get("vllm"))
    results |= {"stale_variables": [setting.name for setting in stale]} if stale else {}
    toolkit = toolkit_release(context.programs)
    unfit = mismatches(_in_play(context, versions, toolkit), shipped_tables())
    results |= {"toolkit": toolkit} if toolkit else {}
    results |= {"mismatches": [finding.message for finding in unfit]} if unfit else {}
    notes += [f"{name} {version}" for name, version in versions.items()] + ([f"nvcc {toolkit}"] if toolkit else [])
    notes += [f"{name}={value}" for name, value in sorted(context.environment.items()) if _changes_behaviour(name)]
    return BuiltinResult(results=results, findings=(*unfit, *(s.finding for s in stale)), notes=tuple(notes))


def _versions(context: BuiltinContext, notes: list[str]) -> dict[str, str]:
    python = workload_python(context.programs, context.workload, here=context.facts.on != "docker")
    try:
        return installed_versions(context.programs, python, _PACKAGES) if python else {}
    except HostNotAble as error:
        notes.append(error.what)
        return {}


def _in_play(context: BuiltinContext, versions: Mapping[str, str], toolkit: str | None) -> Versions:
    return Versions(
        vllm=versions.get("vllm"),
        torch=versions.get("torch"),
        runtime=next((versions[name] for name in RUNTIMES if name in versions), None),
        toolkit=toolkit,
        driver=context.facts.driver,
    )


def _changes_behaviour(name: str) -> bool:
    return name.startswith(("CUDA_", "VLLM_", "NCCL_", "TORCH_", "PYTORCH_", "TRITON_", "FLASHINFER_"))
