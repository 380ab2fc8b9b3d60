"""A command line says what can reach it: flags, a plug-in, or neither."""

import pytest

from vdbg_env.runbook.workload import recognise


@pytest.mark.parametrize(
    ("argv", "kind", "ranks", "eager"),
    [
        ("vllm serve M", "vllm", 1, False),
        ("/opt/venv/bin/vllm serve M -tp 4 --pipeline-parallel-size=2", "vllm", 8, False),
        ("vllm serve M --tensor_parallel_size 2 --enforce_eager", "vllm", 2, True),
        ("vllm serve M -O0", "vllm", 1, True),
        ("vllm serve M -O 0", "vllm", 1, True),
        ("vllm bench latency --model M", "vllm", 1, False),
        ("vllm bench serve --model M", "python", 1, False),
        ("vllm collect-env", "python", 1, False),
        ("uv run vllm serve M", "vllm", 1, False),
        ("env CUDA_VISIBLE_DEVICES=1 vllm serve M", "vllm", 1, False),
        ("numactl -N 0 python3.12 -m vllm.entrypoints.openai.api_server --model M", "vllm", 1, False),
        ("python offline.py", "python", 1, False),
        ("python -u -m pytest tests/x.py", "python", 1, False),
        ("torchrun --nproc-per-node 2 train.py", "python", 1, False),
        ("./train.py", "python", 1, False),
        ("./a.out vllm serve", "program", 1, False),
        ("bash -c 'vllm serve M'", "program", 1, False),
        ("", "program", 1, False),
        ("vllm serve M -tp x", "vllm", 1, False),
    ],
)
def test_workloads_are_recognised(argv: str, kind: str, ranks: int, eager: bool) -> None:
    known = recognise(tuple(argv.split()))
    assert (known.kind, known.ranks, known.eager) == (kind, ranks, eager)


@pytest.mark.parametrize("word", ["--help", "-h", "--help=all"])
def test_a_command_that_prints_its_help_is_no_server(word: str) -> None:
    assert recognise(("vllm", "serve", "m")).serves
    assert not recognise(("vllm", "serve", word)).serves
