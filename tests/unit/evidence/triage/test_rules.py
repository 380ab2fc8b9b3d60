"""The shipped rules: well formed, sourced, and unable to take more than linear time."""

import shutil
import time
from pathlib import Path

import pytest

from tests.support.triage import shipped, triage_bytes
from vdbg_env.common.errors import BadInput
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.common.yaml_source import BadDocument
from vdbg_env.evidence.finding import NO_FAILURE, UNKNOWN
from vdbg_env.evidence.log_line import unwrap
from vdbg_env.evidence.triage_rules import read_rule_book, rule_book, which_of

CLASSES = {
    "illegal-memory-access", "misaligned-address", "device-side-assert", "kernel-hang", "nccl-failure", "out-of-memory",
    "cuda-graph-capture", "version-mismatch", "driver-problem", "no-kernel-image", "triton-compile", "launch-config",
    "cublas-or-cudnn-failure", "model-load", "host-crash", "wrong-output", "not-a-gpu-failure", "unknown",
}  # fmt: skip

HEADER = b"apiVersion: vdbg-env/v1\nkind: TriageRules\nrules:\n"
SOURCE = b"    source: {program: p, file: f, version: '1'}\n"


def test_the_classes_are_those_promised() -> None:
    assert set(shipped().classes) == CLASSES


def test_every_failure_of_a_gpu_program_has_a_runbook_of_its_name() -> None:
    assert {c.name: c.runbook for c in shipped().classes.values()} == {
        name: None if name in {NO_FAILURE, UNKNOWN} else name for name in CLASSES
    }


def test_every_class_has_a_rule_that_names_it() -> None:
    assert {rule.failure for rule in shipped().rules if rule.role == "root"} - {None} == CLASSES - {NO_FAILURE, UNKNOWN}


def test_rule_names_are_unique() -> None:
    names = [rule.id for rule in shipped().rules]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_what_a_class_follows_is_known(name: str) -> None:
    assert shipped().classes[name].follows <= CLASSES - {name, UNKNOWN}


@pytest.mark.parametrize("place", range(len(shipped().rules)), ids=lambda place: shipped().rules[place].id)
def test_no_pattern_takes_more_than_linear_time(place: int) -> None:
    """RE2 cannot backtrack; that the pattern went through it is what is held here, and timed on the worst lines."""
    literal = shipped().rules[place].literals[0]
    for filler in (literal, literal[:-1], " ", "a", "(", literal + " "):
        line = (filler * 60_000)[:60_000] + literal
        begun = time.process_time()
        shipped().confirmed([place], line.encode(), line)
        assert time.process_time() - begun < 3  # seconds of processor time; a backtracking engine would take hours


@pytest.mark.parametrize("pattern", ["'(a+)+\\1'", "'(?=x)y'", "'(?<!x)y'"])
def test_patterns_that_could_backtrack_are_refused_with_their_place(pattern: str) -> None:
    text = HEADER + b"  - id: bad\n    role: victim\n    text: [abcd]\n    regex: " + pattern.encode() + b"\n" + SOURCE
    with pytest.raises(BadDocument) as caught:
        read_rule_book([("rules.yaml", text)])
    assert "rules.yaml:7:12: this pattern is refused by RE2" in caught.value.details[0]


def test_an_unknown_class_is_a_complaint_with_the_nearest_name() -> None:
    classes = (Path(__file__).parents[4] / "runbooks" / "triage" / "classes.yaml").read_bytes()
    text = HEADER + b"  - id: bad\n    class: nccl-failur\n    text: [abcd]\n" + SOURCE
    with pytest.raises(BadDocument) as caught:
        read_rule_book([("rules.yaml", text), ("classes.yaml", classes)])
    assert "did you mean 'nccl-failure'?" in caught.value.details[0]


def shipped_with(folder: Path, text: str) -> Path:
    """Return a copy of the shipped rules, with a rule added."""
    copied = folder / "rules"
    shutil.copytree(SHIPPED_DATA / "runbooks" / "triage", copied)
    with (copied / "cuda.yaml").open("a") as file:
        file.write(text)
    return copied


OWN = """\
  - id: {}
    class: out-of-memory
    text: [my allocator gave up]
    source: {{program: p, file: f, {}: '1'}}
"""


def test_a_wrong_field_is_one_complaint_with_the_way_to_the_shipped_rules(tmp_path: Path) -> None:
    """The rules of its file were unknown then to 45 remedies."""
    with pytest.raises(BadDocument) as caught:
        rule_book(shipped_with(tmp_path, OWN.format("mine", "vresion")))
    assert [complaint.what for complaint in caught.value.complaints] == [
        "the key 'version' is missing", "unknown key 'vresion'",
    ]  # fmt: skip
    assert str(SHIPPED_DATA / "runbooks" / "triage") in (caught.value.next_step or "")


@pytest.mark.parametrize("name", ["mine", "nccl-warn"])
def test_an_id_that_is_there_already_is_refused_in_its_place(name: str, tmp_path: Path) -> None:
    """Of its own file, and of another one."""
    assert name == "mine" or name in {rule.id for rule in shipped().rules}
    with pytest.raises(BadDocument) as caught:
        rule_book(shipped_with(tmp_path, OWN.format("mine", "version") + OWN.format(name, "version")))
    assert [complaint.what for complaint in caught.value.complaints] == [f"{name!r} is there already"]


def test_a_file_is_no_folder_of_rules(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").touch()
    with pytest.raises(BadInput, match="is a file, and --rules names a folder") as caught:
        rule_book(tmp_path / "mine.yaml")
    assert (caught.value.next_step or "").startswith("ls ")


def test_rules_of_a_folder_are_added_to_the_shipped_ones(tmp_path: Path) -> None:
    """A folder needs nothing but the new rules, and the classes that they name are the shipped ones."""
    (tmp_path / "mine.yaml").write_text(
        "apiVersion: vdbg-env/v1\nkind: TriageRules\nrules:\n" + OWN.format("mine", "version")
    )
    ids = {rule.id for rule in rule_book(tmp_path).rules}
    assert ids == {rule.id for rule in shipped().rules} | {"mine"}


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ("my allocator gave up", "ACME-KV: shard", "a text is needed here, not a mapping"),
        ("my allocator gave up", "abc", "a text of at least 4 characters is needed here"),
        ("my allocator gave up", "", "at least one entry is needed here"),
        ("mine", "A_b", "'A_b' is not made of small letters, digits and hyphens"),
    ],
)
def test_a_wrong_value_is_one_complaint_in_words(good: str, bad: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(BadDocument) as caught:
        rule_book(shipped_with(tmp_path, OWN.format("mine", "version").replace(good, bad)))
    assert [complaint.what for complaint in caught.value.complaints] == [said]


def test_only_a_rule_that_dismisses_takes_another_back(tmp_path: Path) -> None:
    with pytest.raises(BadDocument) as caught:
        rule_book(shipped_with(tmp_path, OWN.format("mine", "version") + "    takes_back: mine\n"))
    assert [complaint.what for complaint in caught.value.complaints] == ["only a rule of role dismiss has `takes_back`"]


def test_a_file_of_rules_may_end_in_yml(tmp_path: Path) -> None:
    folder = shipped_with(tmp_path, "")
    header = "apiVersion: vdbg-env/v1\nkind: TriageRules\nrules:\n"
    (folder / "mine.yml").write_text(header + OWN.format("mine", "version"))
    assert "mine" in {rule.id for rule in rule_book(folder).rules}


def test_a_rule_without_a_source_is_refused() -> None:
    with pytest.raises(BadDocument):
        read_rule_book([("rules.yaml", HEADER + b"  - id: bad\n    role: victim\n    text: [abcd]\n")])


def test_lines_that_repeat_for_ever_do_not_slow_the_scan() -> None:
    line = b"(EngineCore pid=1) ERROR 11-03 23:14:03 [core.py:1] CUDA error: an illegal memory access was encountered\n"
    begun = time.process_time()
    verdict = triage_bytes(line * 200_000)
    assert verdict.root_cause is not None
    assert verdict.root_cause.line == 1
    assert time.process_time() - begun < 20  # seconds of processor time


def test_a_line_is_dismissed_untouched_only_where_its_rules_would_dismiss_it_too() -> None:
    book = rule_book()

    def dismissed(said: str) -> bool:
        return any(text in said for text in book.dismissing)

    untouched = 0
    for rule in (rule for rule in book.rules if rule.role == "dismiss"):
        for text in rule.literals:
            said = (
                f"(APIServer pid=7) INFO 11-26 23:00:00 [logger.py:44] {text} an error: CUDA error, Segmentation fault"
            )
            line = unwrap(said)
            met = [met.role for met, _ in book.met_by(line.body, line.text)]
            assert "dismiss" in met or not dismissed(said)
            untouched += dismissed(said)
    assert untouched >= 3
    assert dismissed("INFO [logger.py:44] Received request chatcmpl-7f: prompt: 'what is a CUDA error?'")
    assert not dismissed("Failed to import from vllm._C with ImportError('undefined symbol')")


def test_an_unproven_rule_says_no_more_than_the_prior_of_its_role_whatever_agrees() -> None:
    own = HEADER + b"  - id: acme\n    class: model-load\n    text: ['ACME-KV: shard lost']\n" + SOURCE
    files = [(file.name, file.read_bytes()) for file in sorted((SHIPPED_DATA / "runbooks" / "triage").glob("*.yaml"))]
    book = read_rule_book([*files, ("acme.yaml", own)])
    log = b"ERROR ACME-KV: shard lost\nvllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n"
    seen = triage_bytes(log, book=book)
    assert seen.root_cause is not None
    assert seen.root_cause.rule == "acme"
    assert seen.confidence <= 0.97


@pytest.mark.parametrize("large", ["[a-z]{300}", r"(?i:\pL){440}"])
def test_which_patterns_a_text_has_is_said_of_patterns_of_any_size(large: str) -> None:
    """RE2 takes each of them alone; the second is too large for a set."""
    which = which_of("b$", large)
    assert [which(text) for text in (b"c", b"b", b"a" * 500)] == [None, [0], [1]]
    assert sorted(which(b"a" * 500 + b"b") or ()) == [0, 1]
