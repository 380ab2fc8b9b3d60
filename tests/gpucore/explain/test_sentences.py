"""The checker of sentences can itself be wrong: what it reads, and that each kind of false statement is counted."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.sass.cu_source import functions, is_access
from tests.support.sass.sentences import Claims, SentenceOutcome
from tests.support.sass.written import NotRead, Written

SOURCE = """
namespace a { __global__ void k(const float* x, float* out, int n, int ld) { out[0] = x[n]; } }
namespace b {
__global__ void k(float* out, const int* t, unsigned ld, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int row = t[i], m = t[i] * 3;
  if (row < n) out[row * ld] = 1.f;  // BAD
}
}
"""
INT: dict[str, Any] = {"bits": 64, "loaded": 0, "bytes": [0, 8]}
OUT: dict[str, Any] = {"bits": 64, "parameter": 1, "bytes": [0, 8]}
WHOLE = {"op": "add", "bits": 64, "args": [OUT, {"op": "mul", "bits": 64, "args": [{"bits": 64, "constant": 4}, INT]}]}


def claims(*lines: str, **changed: Any) -> SentenceOutcome:
    """Return what is false in an answer about the fault of b::k, whose thread 1 was bad."""
    base = {"argument": 1, "name": "out", "type": "float*", "bytes": [0, 8], "value": None, "how_known": None}
    rows = {"argument": 2, "name": "t", "type": "int const*", "bytes": [0, 8], "value": None, "how_known": None}
    index = {"scale": 4, "formula": INT, "value": None, "how_known": None}
    load = {
        "name": "row", "line": "k.cu:6", "offset": 16, "opcode": "LDG", "width": 4, "base": rows, "formula": None,
        "index": {"scale": 4, "formula": {"special": "threadIdx.x", "bits": 64}, "value": 1, "how_known": "read"},
        "value": 7, "how_known": "solved",
    }  # fmt: skip
    lanes = {"count": 2, "thread": [1, 0, 0], "certain": True, "possible": 2, "addresses": []}
    address = {
        "value": None, "value_how_known": None, "base": base, "bases": [], "formula": WHOLE, "index": index,
        "loads": [load], "loops": [], "lanes": lanes, "guards": [], "judgement": [], "in_parts": None,
    }  # fmt: skip
    for name, value in changed.items():
        part, _, field = name.partition("__")
        target: Any = {"lanes": lanes, "base": base, "load": load, "address": address, "index": load["index"]}[part]
        target[field] = value
    words = [int.from_bytes(v.to_bytes(8, "little"), "little") for v in (1 << 40, 1 << 41, 4000000000, 100)]
    sizes = (8, 8, 4, 4)
    truth = {
        "block": [32, 1, 1], "blk": [0, 0, 0], "grid": [1, 1, 1],
        "params": [{"size": s, "value": w.to_bytes(s, "little").hex()} for s, w in zip(sizes, words, strict=True)],
        "lanes": {
            str(n): {"thread": [n, 0, 0], "bad": n == 1, "address": (1 << 40) + 4 * n,
                     "loads": {"k:16": {"address": (1 << 41) + 4 * n, "words": [7]}}}
            for n in range(2)
        },
    }  # fmt: skip
    entry = {"file": "k.core", "source": "src/k.cu", "kernel": "k", "fault_lines": [7], "base_argument": [1]}
    fault = {"address": address, "why": lines, "chain": [{"file": "/x/k.cu", "line": 7}]}
    outcome = SentenceOutcome()
    text = f"k.core: Warp Illegal Address in k at {changed.get('address__place', '/x/k.cu:7')}\n"
    Claims(entry, truth, SOURCE, json.loads(json.dumps(fault)), text, outcome).check()
    return outcome


def judgement(kind: str, text: str) -> list[dict[str, str]]:
    return [{"kind": kind, "text": text}]


@pytest.mark.parametrize(
    ("kind", "lines", "changed"),
    [
        ("", (), {}),
        ("", ("= out (argument 1, float*) + 4 * row", "with row = 7, ld = 4000000000"), {}),
        ("thread", (), {"lanes__thread": [0, 0, 0]}),
        ("", ("not confirmed: any",), {"lanes__thread": [0, 0, 0], "lanes__certain": False}),
        ("farthest", ("this one is out of bounds if any is",), {"lanes__thread": [0, 0, 0], "lanes__certain": False}),
        ("count", (), {"lanes__possible": 0}),
        ("count", ("the addresses of all 2 threads are bad alike",), {}),
        ("doubt", ("not confirmed: any",), {}),
        ("placeholder", (), {"address__judgement": judgement("placeholder", "m is -1: a placeholder")}),
        ("argument", (), {"base__name": "x"}),
        ("argument", ("with n = 5",), {}),
        ("loaded", (), {"load__name": "m"}),
        ("loaded", (), {"load__name": "i"}),
        ("element", ("row was loaded at k.cu:6: t[threadIdx.x], index 4",), {}),
        ("element", ("row was loaded at k.cu:6: t[threadIdx.x]",), {"index__scale": 1}),
        ("brackets", ("= out (argument 1, float*) + 4 * row / row",), {}),
        ("fit", ("with ld = -294967296",), {}),
        ("other type", (), {"address__judgement": judgement("other type", "row is 0x40000000, which is the float 2")}),
        ("pointer", ("= c[0][(2 < n ? 8 : 16) + 900] + 4",), {}),
        ("pointer", ("= p (a loaded pointer) + 4 * row",), {}),
        ("tests", (), {"address__judgement": judgement("not compared", "no branch of this function tests row")}),
        ("place", (), {"address__place": "/usr/include/device_functions.hpp:9"}),
        ("place", (), {"load__line": "device_functions.hpp:9"}),
        ("number", (), {"load__value": 8}),
    ],
)  # fmt: skip
def test_each_kind_of_false_statement_is_counted(kind: str, lines: Sequence[str], changed: dict[str, Any]) -> None:
    assert [one for one in claims(*lines, **changed).false if one not in {"", kind}] == []
    assert claims(*lines, **changed).false[kind] == (1 if kind else 0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7 / 2*3", 9), ("7 / (2*3)", 1), ("(1 + 2)*3 - -4", 13), ("1 | 6 & 3", 3), ("5 > 4 ? 2 : 3", 2),
        ("-7 / 2", -3), ("-7 % 2", -1), ("1 << 2 + 1", 8), ("min(3, max(1, 2))", 2), ("(char)255", -1),
        ("part1*2", 10), ("x.y + c[0][0x160] + {MUFU at k.cu:3}", 3), ("!(1 == 2) && 0x10", 1),
    ],
)  # fmt: skip
def test_text_is_read_with_the_precedence_of_c(text: str, value: int) -> None:
    assert Written(lambda _: 1, {"part1": "2 + 3"}).value(text) == value


@given(st.text(max_size=40))
def test_any_text_is_a_number_or_not_read(text: str) -> None:
    with suppress(NotRead):
        Written(lambda name: random.Random(name).randrange(5)).value(text)


@pytest.mark.parametrize(
    ("right", "base"),
    [
        ("t[i]", "t"), ("t[i] * 3", None), ("min(t[i], n)", None), ("s.idx[i]", "s"), ("n->next", "n"), ("n", None),
        ("atomicAdd(&counter[i], 3)", "counter"), ("__ldg(&t[i])", "t"), ("t[i] ? a[i] : b[i]", None), ("t[i].y", "t"),
        ("*reinterpret_cast<const int*>(t[i])", "t"), ("(key[i] * 7u) >> n", None),
    ],
)  # fmt: skip
def test_an_access_is_all_of_a_right_side(right: str, base: str | None) -> None:
    assert is_access(right) == base


def test_of_functions_of_one_name_each_has_its_own_parameters() -> None:
    first, second = functions(SOURCE)
    assert [one.name for one in first.parameters] == ["x", "out", "n", "ld"]
    assert [(one.name, one.stars, one.unsigned) for one in second.parameters] == [
        ("out", 1, False), ("t", 1, False), ("ld", 0, True), ("n", 0, False),
    ]  # fmt: skip
    assert (second.first, second.last) == (4, 8)
    assert [*second.assignments("row")] == [(6, "t[i]")]
    assert any("row < n" in one for one in second.conditions)
