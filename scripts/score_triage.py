"""Score triage on the labelled logs and on the published ones, and write docs/lab/triage-score.md.

python scripts/score_triage.py          # score, write the page
python scripts/score_triage.py --fit    # first fit runbooks/triage/calibration.yaml to these and to our own runs

The published logs are not part of the project: VDBG_GENUINE names their folder, else it is looked for next to the
checkout. Without them the page cannot be written.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # for tests.support

from tests.support.genuine import (  # noqa: E402
    Answer,
    GenuineLog,
    ask_first_match,
    genuine_folder,
    genuine_logs,
    genuine_transcripts,
    reliability,
    score,
)
from tests.support.transcripts import facts  # noqa: E402
from tests.support.triage import LOGS, Labelled, corpus, shipped, triage_bytes  # noqa: E402
from vdbg_env.evidence.log_line import decode, unwrap  # noqa: E402
from vdbg_env.evidence.triage_rules import CalibrationDocument, RuleBook, calibrated  # noqa: E402
from vdbg_env.evidence.triage_scan import LogClassifier  # noqa: E402
from vdbg_env.evidence.triage_verdict import THRESHOLD, Triage, clues_of, judge  # noqa: E402

PAGE = ROOT / "docs" / "lab" / "triage-score.md"
CALIBRATION = ROOT / "runbooks" / "triage" / "calibration.yaml"
BENIGN = "not-a-gpu-failure"
FOLDS = 10
STEPS, RATE, DECAY = 120, 0.5, 0.01  # of the fit: gradient steps, their size, and how strongly weights tend to 0
WRITTEN_SINCE = frozenset(
    """
    checkpoint-file cudnn-library killed-by-signal-9 launcher-stub uncaught-in-cpp xid-nvlink-fatal
    amdgpu-reset build-step-failed cancelled compiler-error compiler-killed config-file cuda-unknown-error
    cutlass-status disk-full engine-iteration-timeout engine-process-died error-in-finalizer error-line
    exception-of-another-end exception-that-names-the-gpu gpu-coredump-begun hip-exception hip-illegal-address
    hip-kernel-assertion hip-library-status hip-out-of-memory inputs-of-failed-execution memory-profiling
    bad-argument hub-name missing-file setting-refused wait-cancelled engine-core-exited ray-worker-gone
    worker-aborted
    missing-module optional-part-left-out pip-build-failed port-in-use py-spy-synchronize python-exception
    ray-worker-died request-answered rocm-driver rocm-memory-fault sglang-out-of-memory sglang-watchdog
    slurm-ended-the-job slurm-oom-kill test-passed tokens-generated unrecognized-arguments work-done worker-failed-with
    amdgpu-page-fault driver-compiles-ptx driver-refuses gsp-timeout node-failed own-extension-missing peer-access
    pod-not-started request-failed switch-opened sxid-fatal tensorrt-llm-check
    architecture-not-inspected caused-by-driver caused-by-invalid-argument caused-by-memory caused-by-missing-code
    debugger-saw-abort debugger-saw-signal ggml-assertion ggml-load ggml-load-failed gguf-file hint-assertion
    hint-capture hint-driver hint-illegal-address hint-launch hint-memory hint-no-image hint-other-exception
    lldb-saw-abort lldb-saw-signal llama-server-answered llama-generated llama-server-started sglang-started
    triton-server-started comfyui-started comfyui-prompt-executed deepspeed-rank-ended-well training-completed
    ray-job-succeeded benchmark-counted gtest-passed trained-a-step deepspeed-step
    client-went-away extension-build-failed
    xid-memory-recorded xid-harmless xid-event xid-engine gpu-core-written advice-without-a-level
    exception-of-another-language gloo-peer-gone nvcc-refused pool-process-died process-ended-itself
    """.split()  # noqa: SIM905
)

HEADER = """\
# Written by `python scripts/score_triage.py --fit` from published logs and our own runs: do not edit by hand.
#
# [right, answers] of each rule; `unproven`: the same of rules that no log of any other project had met, by role;
# `second_stage`: of its answers. `weights`: of the clues, and of the place of a line in its log.
"""


INTRODUCTION = """\
# How often triage is right

Written by `python scripts/score_triage.py`. The published logs are 172 logs and log blocks of other people, 2023 to
2026, from public repositories and issue posts. Each was labelled before any tool saw it. They are not part of the
project: `VDBG_GENUINE` names their folder.

- **projects left out**: a log is answered without anything that its own project taught. The weights of the second
  stage and the record of every rule are those of other projects. A rule written after the logs had been seen is
  switched off unless a log of another project meets it, and so is every form of lines of the second stage. All posts of
  one issue tracker are one project.
- **lower bound**: the same, and every rule is switched off in this way, whenever it was written.
- **first match**: a list of 16 patterns. The first line that has one of them decides, as with grep.
- **learned**: all rules and weights. The rules were improved on these logs, so this row says nothing of a new log.
- **own runs**: logs of programs that were run for this project (`tests/data/logs/ran`), each without what runs of the
  same program taught. Most are of compilers, package managers, launchers and servers.

A class is right when it is the label, or one that the label accepts too. Confident means 0.7 or more. A benign log is
one in which nothing failed.

## Published logs
"""

UNSEEN = """\
Before the second stage (2026-11-23, revision d1d39e0f) the 65 logs of the second set were new: class 84.6%, root line
43 of 52, confident and wrong 5 of 53, benign called a failure 2, failures without a line 7. A larger set, of which
these are the published half, had class 83.7% and root line 96 of 114.

On 2026-11-24, 94 of the own runs were new, and no rule or weight had been changed for them. Of these the class was
right in 77 (81.9%), the root line in 74 of 86 failures (86.0%), 4 of 77 confident answers were wrong, 2 of 8 healthy
logs were called a failure of the program, and 3 failures had no line. On 2026-11-27, 8 of DeepSpeed were new: the
class was right in all, and the root line in all 6 failures.

## What confidence is made of

`runbooks/triage/calibration.yaml` has for each rule how many answers by it were right, counted with the log's project
left out. The confidence of a rule is that record on top of a prior worth four answers. The prior is the record of all
rules of the same role that no other project had met, so a new rule starts there, and is shown as unproven.
"""


# ---- fitting


@dataclass(frozen=True, kw_only=True)
class Lines:
    """What the second stage can choose from in one log: the forms of each line, and which lines are right."""

    forms: tuple[frozenset[str], ...]
    right: frozenset[int]


@cache
def lines_of(log: GenuineLog) -> Lines:
    """Read a log as if no rule knew any of its lines."""
    book = shipped()
    classifier = LogClassifier(replace(book, rules=()), log.file.name)
    classifier.feed(log.file.read_bytes())
    evidence = classifier.finish()
    clues = list(clues_of(evidence, evidence.clues, book))
    right = frozenset(place for place, clue in enumerate(clues) if clue.line in log.root)
    return Lines(forms=tuple(clue.forms for clue in clues), right=right)


def fit_weights(logs: Iterable[GenuineLog]) -> dict[str, float]:
    """Fit the weights of the second stage: a conditional logit over the lines of each log, and over "none of them".

    None of them is right where nothing failed. A failure whose line has no form of an error teaches nothing.
    """
    cases = [(one, log.benign) for log in logs if (one := lines_of(log)).forms and (one.right or log.benign)]
    weights: dict[str, float] = defaultdict(float)
    squares: dict[str, float] = defaultdict(lambda: 1e-6)
    for _ in range(STEPS):
        slope: dict[str, float] = defaultdict(float)
        for one, benign in cases:
            sums = [sum(weights[form] for form in forms) for forms in one.forms] + [weights[THRESHOLD]]
            most = max(sums)
            parts = [math.exp(value - most) for value in sums]
            total = sum(parts)
            wanted = [place in one.right for place in range(len(one.forms))] + [benign and not one.right]
            among = sum(part for part, is_right in zip(parts, wanted, strict=True) if is_right)
            for place, (part, is_right) in enumerate(zip(parts, wanted, strict=True)):
                off = (part / among if is_right else 0.0) - part / total
                if abs(off) > 1e-4:
                    for form in one.forms[place] if place < len(one.forms) else (THRESHOLD,):
                        slope[form] += off / len(cases)
        for form, value in slope.items():
            value -= DECAY * weights[form]
            squares[form] += value * value
            weights[form] += RATE * value / math.sqrt(squares[form])
    return {form: round(weight, 2) for form, weight in sorted(weights.items())}


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One log's answer: the rule that its root is by (None: no line), whether that was right, and the role."""

    log: GenuineLog
    answer: Answer
    rule: str | None
    form: str | None


def asked(log: GenuineLog, book: RuleBook) -> Seen:
    """Triage one log by a rule book."""
    classifier = LogClassifier(book, log.file.name)
    classifier.feed(log.file.read_bytes())
    verdict = judge([classifier.finish()], book)
    root = verdict.root_cause
    answer = Answer(log, verdict.failure.name, root.line if root else None, verdict.confidence)
    return Seen(log=log, answer=answer, rule=root.rule if root else None, form=verdict.clue_form)


def calibration(seen: Sequence[Seen], weights: Mapping[str, float]) -> CalibrationDocument:
    """Count how often each rule was right, and how often one that only the logs of one project had met."""
    roles = {rule.id: rule.role for rule in shipped().rules}
    rules: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    unproven: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    second: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    projects: dict[str, set[str]] = defaultdict(set)
    for one in seen:
        if one.rule:
            projects[one.rule].add(one.log.project)
    for one in seen:
        counts = [second[one.form]] if one.form else []
        if one.rule in roles:
            counts.append(rules[one.rule])
            if len(projects[one.rule]) == 1:
                counts.append(unproven[roles[one.rule]])
        for count in counts:
            count[0] += one.answer.right
            count[1] += 1
    return CalibrationDocument.model_construct(
        unproven={k: tuple(v) for k, v in sorted(unproven.items())},
        rules={k: tuple(v) for k, v in sorted(rules.items())},
        second_stage={k: tuple(v) for k, v in sorted(second.items())},
        weights=dict(weights),
    )


def own_runs() -> list[GenuineLog]:
    """Return the logs of programs that were run for this repository; each program is a project of its own."""
    return [
        GenuineLog(
            file=LOGS / log.file,
            failure=log.failure,
            acceptable=frozenset([log.failure]),
            root=frozenset(log.root),
            benign=not log.root,
            whole=True,
            project=f"{log.file.partition('-')[0]} (run)",
        )
        for log in corpus()
        if log.file.startswith("ran/")
    ]


def folds_of(logs: Sequence[GenuineLog]) -> list[set[str]]:
    """Divide the projects into folds of about equal size; the trackers with the most posts are folds of their own."""
    folds: list[tuple[int, set[str]]] = [(0, set()) for _ in range(FOLDS)]
    for project, count in sorted(Counter(log.project for log in logs).items(), key=lambda pair: (-pair[1], pair[0])):
        size, members = folds.pop(min(range(FOLDS), key=lambda place: folds[place][0]))
        folds.append((size + count, members | {project}))
    return [members for _, members in folds]


@cache
def rules_met(log: GenuineLog) -> frozenset[str]:
    """Return every rule that any line of a log meets."""
    book = shipped()
    lines = (
        unwrap(decode(line))
        for line in log.file.read_bytes().split(b"\n")
        if any(literal.encode() in line for literal in book.holders)
    )
    return frozenset(rule.id for line in lines for rule, _ in book.met_by(line.body, line.text))


def without_unmet(book: RuleBook, logs: Iterable[GenuineLog], tried: Callable[[str], bool]) -> RuleBook:
    """Return the rules without those, of the ones tried, that none of these logs meets, and without such clues."""
    logs = list(logs)
    met = frozenset().union(*(rules_met(log) for log in logs))
    forms = frozenset().union(*(forms for log in logs for forms in lines_of(log).forms))
    return replace(
        book,
        rules=tuple(rule for rule in book.rules if rule.id in met or not tried(rule.id)),
        clues=tuple(clue for clue in book.clues if clue.id in forms),
    )


def projects_left_out(
    logs: Sequence[GenuineLog], tried: Callable[[str], bool] = WRITTEN_SINCE.__contains__
) -> list[Seen]:
    """Ask about each log with what the logs of other projects teach.

    That is: the weights and records fitted to those, and without the rules, of the ones tried, that none of those
    logs meets.
    """
    folds = folds_of(logs)
    place = {project: index for index, fold in enumerate(folds) for project in fold}
    weights, books = [], []
    for fold in folds:
        others = [log for log in logs if log.project not in fold]
        weights.append(fit_weights(others))
        books.append(without_unmet(shipped(), others, tried))
    plain = []
    for log in logs:
        index = place[log.project]
        plain.append(asked(log, calibrated(books[index], calibration([], weights[index]))))
    found = []
    for index, fold in enumerate(folds):
        learned = calibration([s for s in plain if s.log.project not in fold], weights[index])
        found += [asked(log, calibrated(books[index], learned)) for log in logs if log.project in fold]
    return sorted(found, key=lambda one: logs.index(one.log))


def fit(logs: Sequence[GenuineLog]) -> None:
    """Write the calibration: weights by all published logs and own runs, records with the project left out."""
    logs = [*logs, *own_runs()]
    found = calibration(projects_left_out(logs), fit_weights(logs))
    document = {"apiVersion": "vdbg-env/v1", "kind": "TriageCalibration"} | {
        key: {name: list(value) if isinstance(value, tuple) else value for name, value in table.items()}
        for key, table in found.model_dump().items()
        if isinstance(table, dict)
    }
    lines = [HEADER.rstrip()]
    for key, value in document.items():
        lines += [f"{key}: {value}"] if isinstance(value, str) else [f"{key}:" if value else f"{key}: {{}}"]
        lines += [f"  {name}: {one}" for name, one in value.items()] if isinstance(value, dict) else []
    CALIBRATION.write_text("\n".join(lines) + "\n")


# ---- the page


@dataclass(frozen=True, kw_only=True)
class OwnAnswer:
    """Triage's answer for one log of the repository."""

    log: Labelled
    verdict: Triage


def published(logs: Sequence[GenuineLog]) -> list[str]:
    """Return the tables of the published logs."""
    ours = [asked(log, shipped()).answer for log in logs]
    runs = own_runs()
    answered = [one.answer for one in projects_left_out([*logs, *runs])]
    left_out, ran = answered[: len(logs)], answered[len(logs) :]
    lowest = [one.answer for one in projects_left_out([*logs, *runs], lambda rule: True)][: len(logs)]
    naive = [ask_first_match(log) for log in logs]
    rows = [
        ("projects left out: all", left_out),
        ("projects left out: whole logs", [a for a in left_out if a.log.whole]),
        ("projects left out: issue posts", [a for a in left_out if not a.log.whole]),
        ("lower bound", lowest),
        ("first match", naive),
        ("learned", ours),
        ("own runs, program left out", ran),
    ]
    lines = [
        "| | logs | class | root line | confident and wrong | benign called a failure | failures without a line |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, some in rows:
        s = score(some)
        rooted = [a for a in some if a.log.root]
        silent = sum(a.line is None and not a.log.benign for a in some)
        lines.append(
            f"| {name} | {s.logs} | {s.classes:.1%} | {_share(a.right_line for a in rooted)} ({s.root:.1%}) | "
            f"{round(s.wrong_confident * s.confident)} of {s.confident} | {s.false_alarms} | {silent} |"
        )
    lines += ["", "| confidence from | answers | mean confidence | right |", "| --- | --- | --- | --- |"]
    lines += [f"| {edge:.1f} | {n} | {mean:.2f} | {right:.2f} |" for edge, n, mean, right in reliability(left_out)]
    wrong = [a.log.file.name for a in left_out if not a.right]
    return [*lines, "", f"Wrong classes with the project left out: {', '.join(wrong) or 'none'}.", ""]


def transcripts(folder: Path) -> list[str]:
    """Return the table of the published transcripts, by kind."""
    lines = ["## Transcripts", "", "| of | facts | read | missed | wrong |", "| --- | --- | --- | --- | --- |"]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for entry in genuine_transcripts(folder):
        counts[entry["kind"]].update(fact.outcome for fact in facts(entry))
    counts["all"] = sum(counts.values(), Counter())
    for kind, count in counts.items():
        lines.append(f"| {kind} | {count.total()} | {count['read']} | {count['missed']} | {count['wrong']} |")
    return [*lines, ""]


def own() -> list[str]:
    """Return the table of the logs in the repository."""
    lines = [
        "## Our own logs",
        "",
        "| part | logs | class | root line | benign called a failure |",
        "| --- | --- | --- | --- | --- |",
    ]
    answers = [OwnAnswer(log=log, verdict=triage_bytes(log.read())) for log in corpus()]
    for part in dict.fromkeys(answer.log.file.split("/")[0] for answer in answers):
        found = [answer for answer in answers if answer.log.file.startswith(f"{part}/")]
        alarms = sum(a.log.failure == BENIGN and not a.log.right_class(a.verdict) for a in found)
        rooted = [a for a in found if a.log.root]
        lines.append(
            f"| `{part}` | {len(found)} | {_share(a.log.right_class(a.verdict) for a in found)} | "
            f"{_share(a.log.right_line(a.verdict) for a in rooted)} | {alarms} |"
        )
    wrong = [a for a in answers if not a.log.right_line(a.verdict)]
    return [*lines, "", *(f"- `{a.log.file}`: expected {a.log.failure} at {list(a.log.root)}" for a in wrong)]


def _share(right: Iterable[bool]) -> str:
    values = list(right)
    return f"{sum(values)} of {len(values)}" if values else "none"


def main(argv: Sequence[str] | None = None) -> int:
    """Score everything and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true", help="first fit the calibration to the published logs")
    given = parser.parse_args(argv)
    folder = genuine_folder()
    if folder is None:
        print("the published logs are not here; name their folder in VDBG_GENUINE", file=sys.stderr)
        return 2
    logs = genuine_logs(folder)
    if given.fit:
        fit(logs)
        shipped.cache_clear()
    lines = [INTRODUCTION, *published(logs), UNSEEN, *transcripts(folder), *own()]
    PAGE.write_text("\n".join(lines).rstrip() + "\n")
    print(PAGE.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
