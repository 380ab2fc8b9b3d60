"""Lint of what cannot work on several ranks."""

import pytest

from tests.support.shipped import library
from vdbg_env.common import yaml_source
from vdbg_env.common.yaml_source import BadDocument
from vdbg_env.run.library import catalogue
from vdbg_env.runbook.lint import load

TEXT = """
apiVersion: vdbg-env/v1
kind: Runbook
metadata: {name: ranks, title: Ranks}
spec:
  inputs:
    argv: {type: array, required: true}
  commands:
    workload:
      argv: "${{ inputs.argv }}"
      placement: {nodes: 2}
      driver: {replay: requests.jsonl, ready: {http: "http://HOST/health"}}
  steps:
    - id: first
      run: workload
      env: {CUDA_COREDUMP_FILE: "FILE"}
      argv: {wrap: [compute-sanitizer, "--log-file", "LOG"]}
      outcomes:
        - not_reproduced: {next: end}
"""
RIGHT = {"HOST": "localhost:1", "FILE": "${{ rank.dir }}/core.%p", "LOG": "${{ rank.dir }}/log"}


def complaints(text: str = TEXT, **changed: str) -> list[str]:
    for name, value in {**RIGHT, **changed}.items():
        text = text.replace(name, value) if name != "FILE" else text.replace('"FILE"', f'"{value}"')
    try:
        load(yaml_source.read(text, "ranks.yaml"), library().steps, catalogue(), runbooks=[])
    except BadDocument as error:
        return [complaint.what for complaint in error.complaints]
    return []


def test_files_in_the_folder_of_each_rank_are_right() -> None:
    assert complaints() == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"FILE": "/tmp/core"}, "all ranks would write '/tmp/core'"),
        ({"LOG": "sanitizer.log"}, "each rank is wrapped by itself, and all would write 'sanitizer.log'"),
        ({"HOST": "${{ rank.host }}:1"}, "requests are sent at the first rank only"),
    ],
)
def test_what_all_ranks_would_share_is_refused(changed: dict[str, str], said: str) -> None:
    (complaint,) = complaints(**changed)
    assert said in complaint


def test_a_single_rank_may_write_where_it_likes() -> None:
    assert complaints(TEXT.replace("placement: {nodes: 2}", "placement: {nodes: 1}"), FILE="/tmp/core", LOG="log") == []
