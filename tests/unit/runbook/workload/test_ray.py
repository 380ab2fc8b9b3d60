"""What is said before a workload runs whose workers Ray starts."""

import pytest

from vdbg_env.runbook.workload import ray_hints


@pytest.mark.parametrize(
    ("argv", "environment", "said"),
    [
        (("python", "train.py"), {"RAY_ADDRESS": "10.0.0.1:6379"}, "runtime_env"),
        (("vllm", "serve", "m", "--distributed-executor-backend", "ray"), {}, "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"),
        (("vllm", "serve", "m", "--distributed_executor_backend=ray"), {"RAY_ADDRESS": "local"}, "--nnodes"),
        (("vllm", "serve", "m", "--data-parallel-backend=ray"), {}, "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"),
    ],
)
def test_what_must_be_set_is_said(argv: tuple[str, ...], environment: dict[str, str], said: str) -> None:
    (line,) = ray_hints(argv, environment)
    assert said in line


@pytest.mark.parametrize(
    "argv", [("vllm", "serve", "ray"), ("python", "ray.py"), ("vllm", "--distributed-executor-backend", "mp")]
)
def test_without_ray_nothing_is_said(argv: tuple[str, ...]) -> None:
    assert list(ray_hints(argv, {})) == []
