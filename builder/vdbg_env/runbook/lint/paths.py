"""Prove that every `next` resolves, every step is reached, and every path ends by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from vdbg_env.common.errors import Complaint, nearest
from vdbg_env.common.yaml_source import Path
from vdbg_env.runbook.expressions.template import is_template
from vdbg_env.runbook.model import End, Manual, Next, Run, Runbook, Step, ToRunbook, ToStep, Uses
from vdbg_env.runbook.parsing.locations import Places

_Edges = Sequence[Sequence[tuple[Path, Next]]]  # of each step, every `next` with the path at which it was written


def path_complaints(runbook: Runbook, places: Places, runbooks: Sequence[str] | None) -> Iterator[Complaint]:
    """Yield every complaint about where steps lead; `runbooks` are the names that may be branched to, None for any."""
    yield from _names(runbook, places)
    ids = {step.id for step in runbook.steps}
    edges: _Edges = [tuple(_edges(index, step, places)) for index, step in enumerate(runbook.steps)]
    broken = False
    for leads in edges:
        for path, target in leads:
            match target:
                case ToStep(step=name) if name not in ids:
                    broken = True
                    what = f"no step {name!r}; there are: {', '.join([*sorted(ids), 'end'])}"
                    yield places.complaint(path, what, suggestion=nearest(name, [*ids, "end"]))
                case ToRunbook(runbook=name) if is_template(name):
                    if "outcomes" not in path:
                        what = "only an outcome may name a runbook by an expression: elsewhere nothing has been seen"
                        yield places.complaint(path, what)
                case ToRunbook(runbook=name) if runbooks is not None and name not in runbooks:
                    what = f"no runbook {name!r}; there are: {', '.join(sorted(runbooks))}"
                    yield places.complaint(path, what, suggestion=nearest(name, runbooks))
                case _:
                    pass
    if not broken:
        yield from _unreached(runbook, edges, places)
        yield from _circles(runbook, edges, places)


def _names(runbook: Runbook, places: Places) -> Iterator[Complaint]:
    for name, count in Counter(step.id for step in runbook.steps).items():
        if count > 1:
            index = [i for i, step in enumerate(runbook.steps) if step.id == name][1]
            yield places.complaint(("spec", "steps", index, "id"), f"there are {count} steps called {name!r}")
    for index, step in enumerate(runbook.steps):
        if step.id == "end":
            yield places.complaint(("spec", "steps", index, "id"), "'end' is where a runbook stops, not a step")


def _unreached(runbook: Runbook, edges: _Edges, places: Places) -> Iterator[Complaint]:
    by_id = {step.id: index for index, step in enumerate(runbook.steps)}
    reached: set[str] = set()
    ahead = [runbook.steps[0].id] if runbook.steps else []
    while ahead:
        name = ahead.pop()
        if name in reached:
            continue
        reached.add(name)
        ahead += [x.step for _, x in edges[by_id[name]] if isinstance(x, ToStep)]
    for index, step in enumerate(runbook.steps):
        if step.id not in reached:
            yield places.complaint(("spec", "steps", index, "id"), f"no path leads to step {step.id!r}")


def _circles(runbook: Runbook, edges: _Edges, places: Places) -> Iterator[Complaint]:
    """Complain about each way back that no person has to choose: without one, every path is shorter than the runbook.

    Steps are visited depth first with an explicit stack; an edge to a step that is still open closes a circle.
    """
    forced = {step.id: _forced(step, leads) for step, leads in zip(runbook.steps, edges, strict=True)}
    state: dict[str, str] = {}
    for start in forced:
        stack: list[tuple[str, Iterator[tuple[Path, str]]]] = []
        if start not in state:
            state[start] = "open"
            stack.append((start, iter(forced[start])))
        while stack:
            name, ahead = stack[-1]
            path, target = next(ahead, ((), ""))
            if not target:
                state[name] = "closed"
                stack.pop()
            elif state.get(target) == "open":
                yield places.complaint(
                    path,
                    f"leads back to {target!r}, and the runbook may never end: only a choice of a person that is "
                    "not the default may lead back (to run a step several times, use 'repeat')",
                )
            elif target not in state:
                state[target] = "open"
                stack.append((target, iter(forced[target])))


def _forced(step: Step, leads: Sequence[tuple[Path, Next]]) -> list[tuple[Path, str]]:
    """Return the edges that are taken without a person's choice."""

    def chosen(path: Path) -> bool:
        return isinstance(step, Manual) and path[-2:-1] == ("choices",) and path[-1] != step.question.default

    return [(path, target.step) for path, target in leads if isinstance(target, ToStep) and not chosen(path)]


def _edges(index: int, step: Step, places: Places) -> Iterator[tuple[Path, Next]]:
    """Yield every `next` of a step with the path at which it was written."""
    path: Path = ("spec", "steps", index)
    match step:
        case Manual():
            yield from (((*path, "manual", "choices", name), x) for name, x in step.question.choices.items())
        case Run() | Uses():
            for number, outcome in enumerate(step.outcomes):
                yield _written(path, number, outcome.status.value, places), outcome.next
    if step.skipped and not isinstance(step.skipped.next, End):
        yield (*path, "skipped", "next"), step.skipped.next


def _written(path: Path, number: int, status: str, places: Places) -> Path:
    """Return where an outcome's `next` was written: at the outcome itself, else in the step's own `next`."""
    options = [(*path, "outcomes", number, status, "next"), (*path, "next", status), (*path, "next", "otherwise")]
    return next((option for option in options if places.written(option)), (*path, "next"))
