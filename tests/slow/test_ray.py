"""A real Ray as a workload: the variables of a step are looked for in Ray's own workers.

Ray is asked for in `.cache/ray`, a virtual environment (`pip install ray`, 80 MB), and these tests skip without it.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.patience import patience
from tests.support.steps import place, runner
from tests.vllm_real.server import free_port
from vdbg_env.evidence.finding import Observation
from vdbg_env.runbook.state import Invocation

RAY = Path(__file__).parents[2] / ".cache" / "ray" / "bin"
HERE = "127.0.0.1"
START = (
    f"ray.init(num_cpus=1, _node_ip_address='{HERE}', include_dashboard=False, object_store_memory=80 << 20, "
    "log_to_driver=False)\n"
)
JOIN = """
passed_on = {"env_vars": {"OVERLAY": os.environ["OVERLAY"]}} if sys.argv[1:] else None
for _ in range(60):
    try:
        ray.init(log_to_driver=False, runtime_env=passed_on)
        break
    except Exception:  # the cluster is still starting
        time.sleep(1)
"""
# Long enough for the census, which looks every two seconds.
ASK = """
@ray.remote
def ask():
    time.sleep(6)
    return os.environ.get("OVERLAY")
print("the worker has", ray.get(ask.remote()), flush=True)
"""


@pytest.fixture(autouse=True)
def ray_is_there() -> None:
    if not (RAY / "ray").is_file():
        pytest.skip("no Ray here: python3 -m venv .cache/ray && .cache/ray/bin/pip install ray")


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    # The path of a socket may have 107 characters, so the folder is not one of pytest's.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        yield {
            "PATH": f"{RAY}{os.pathsep}{os.environ['PATH']}",
            "HOME": folder,
            "LANG": "C.UTF-8",
            "RAY_TMPDIR": folder,
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": "300",
        }


def run(tmp_path: Path, env: Mapping[str, str], code: str, *words: str) -> tuple[Observation, str]:
    invocation = Invocation(
        step="step", attempt=1, argv=(str(RAY / "python"), "-c", "import os, ray, sys, time\n" + code + ASK, *words),
        env={"OVERLAY": "1"}, timeout_s=patience(240),
    )  # fmt: skip
    seen = runner(tmp_path, env=env).start(invocation, place(tmp_path)).wait(patience(260))
    assert seen is not None
    return seen, (tmp_path / "run" / "steps" / "step" / "1" / "localhost-0" / "stdout").read_text()


def of_ray(seen: Observation) -> list[str | None]:
    """Return what each of Ray's workers had of the step's variable."""
    return [worker.seen.get("OVERLAY") for worker in seen.workers if worker.name.startswith("ray::") and worker.known]


@pytest.fixture
def cluster(environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """Start a cluster that knows nothing of a step, as a site's would."""
    port = free_port()
    start = [
        *(str(RAY / "python"), str(RAY / "ray"), "start", "--head", f"--port={port}", f"--node-ip-address={HERE}"),
        *("--num-cpus=1", "--include-dashboard=false", f"--object-store-memory={80 << 20}", "--block"),
    ]
    with (tmp_path / "ray.log").open("wb") as log:
        head = subprocess.Popen(start, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        yield f"{HERE}:{port}"
    finally:
        head.terminate()  # with --block it ends all that it started
        head.wait(patience(60))


def test_the_variables_of_a_step_are_seen_in_rays_workers(tmp_path: Path, environment: dict[str, str]) -> None:
    seen, said = run(tmp_path, environment, START)
    assert "the worker has 1" in said
    assert seen.ended.clean, seen.ended
    assert "1" in of_ray(seen)


@pytest.mark.parametrize("passed_on", [False, True])
def test_the_workers_of_a_cluster_that_ran_before_get_them_by_runtime_env_only(
    tmp_path: Path, environment: dict[str, str], cluster: str, passed_on: bool
) -> None:
    seen, said = run(tmp_path, {**environment, "RAY_ADDRESS": cluster}, JOIN, *(["on"] if passed_on else []))
    assert f"the worker has {'1' if passed_on else None}" in said
    assert of_ray(seen) == []  # they are not the step's: nothing is claimed of them
