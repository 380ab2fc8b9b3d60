"""Basic blocks, and what dominates what, against plain reachability."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucore.sass import PT, ControlFlow, Instruction, Register, RegisterOperand, Target, control_flow

GUARD = RegisterOperand(Register("P", 0))


def _code(*lines: str) -> list[Instruction]:
    """Make instructions of `BRA 3`, `@BRA 3` (guarded), `EXIT`, `CALL 3`, `BRX` ...; targets count instructions."""
    made = []
    for number, line in enumerate(lines):
        name, _, target = line.removeprefix("@").partition(" ")
        opcode, *modifiers = name.split(".")
        sources = (Target(16 * int(target)),) if target else ()
        guard = GUARD if line.startswith("@") else None
        made.append(Instruction(16 * number, opcode, tuple(modifiers), sources=sources, guard=guard))
    return made


def _shape(flow: ControlFlow) -> list[tuple[int, int, str, tuple[int, ...]]]:
    return [(block.start // 16, block.end // 16, block.ends, block.successors) for block in flow.blocks]


def test_a_branch_a_loop_and_a_merge_make_blocks() -> None:
    flow = control_flow(_code("MOV", "@BRA 4", "MOV", "BRA 5", "MOV", "@BRA 0", "EXIT", "MOV"))
    assert _shape(flow) == [
        (0, 2, "branch", (2, 1)),
        (2, 4, "branch", (3,)),
        (4, 5, "falls", (3,)),
        (5, 6, "branch", (0, 4)),
        (6, 7, "exit", ()),
    ]
    assert flow.dominators == (None, 0, 0, 0, 3)
    assert flow.postdominators == (3, 3, 3, 4, None)
    assert flow.dominates(0, 4) and flow.postdominates(3, 1) and not flow.dominates(1, 3)
    assert flow.order[0] == 0 and set(flow.order) == {0, 1, 2, 3, 4}
    assert flow.block_at(16 * 7) is None, "what follows the last EXIT cannot be reached"
    block = flow.block_at(16 * 5)
    assert block is not None and block.number == 3


def test_a_guarded_exit_goes_on_and_ends() -> None:
    flow = control_flow(_code("MOV", "@EXIT", "MOV", "EXIT"))
    assert _shape(flow) == [(0, 2, "exit", (1,)), (2, 4, "exit", ())]
    assert flow.postdominators == (None, None)


def test_calls_go_on_and_callees_have_their_own_graph() -> None:
    code = _code("MOV", "CALL.REL.NOINC 3", "EXIT", "MOV", "RET")
    flow = control_flow(code)
    assert [(call.offset // 16, (call.callee or 0) // 16) for call in flow.calls] == [(1, 3)]
    assert _shape(flow) == [(0, 3, "exit", ())]
    callee = control_flow(code, entry=48)
    assert _shape(callee) == [(3, 5, "return", ())]
    assert callee.entry_block == 0


def test_an_indirect_branch_needs_its_table() -> None:
    code = _code("MOV", "BRX", "MOV", "EXIT", "MOV", "EXIT")
    assert control_flow(code).unresolved == (16,)
    assert control_flow(code).blocks[0].ends == "unknown"
    flow = control_flow(code, tables={16: (32, 64)})
    assert flow.unresolved == ()
    assert _shape(flow) == [(0, 2, "branch", (1, 2)), (2, 4, "exit", ()), (4, 6, "exit", ())]


@pytest.mark.parametrize("line", ["BRA.DIV 0", "BRA.CONV 0"])
def test_a_branch_that_depends_on_the_threads_may_not_be_taken(line: str) -> None:
    assert control_flow(_code(line, "EXIT")).blocks[0].successors == (0, 1)


def test_a_predicate_operand_makes_a_branch_conditional_but_the_true_one_does_not() -> None:
    taken = Instruction(0, "BRA", sources=(RegisterOperand(PT), Target(0)))
    asked = Instruction(0, "BRA", ("U",), sources=(RegisterOperand(Register("UP", 1), negated=True), Target(0)))
    behind = Instruction(16, "EXIT")
    assert control_flow([taken, behind]).blocks[0].successors == (0,)
    assert control_flow([asked, behind]).blocks[0].successors == (0, 1)


def test_code_that_runs_off_its_end_is_said_to() -> None:
    assert control_flow(_code("MOV", "MOV")).unresolved == (16,)
    assert control_flow(_code("@BRA 9", "EXIT")).unresolved == (0,)
    with pytest.raises(ValueError, match="offset 0x8"):
        control_flow(_code("EXIT"), entry=8)


LINES = st.lists(
    st.one_of(
        st.sampled_from(["MOV", "EXIT", "@EXIT"]),
        st.builds("{}BRA {}".format, st.sampled_from(["", "@"]), st.integers(0, 11)),
    ),
    min_size=12,
    max_size=12,
)


@given(LINES)
def test_dominators_are_what_reachability_says(lines: list[str]) -> None:
    flow = control_flow(_code(*lines))
    numbers = range(len(flow.blocks))
    after = {n: set(flow.blocks[n].successors) for n in numbers}
    ends = {n for n in numbers if flow.blocks[n].ends in ("exit", "return", "unknown")}

    def reach(start: int, without: int) -> set[int]:
        found, todo = set(), [start] if start != without else []
        while todo:
            node = todo.pop()
            if node not in found:
                found.add(node)
                todo += after[node] - {without}
        return found

    assert reach(flow.entry_block, -1) == set(numbers), "every block can be reached"
    for upper in numbers:
        missing = set(numbers) - reach(flow.entry_block, upper)
        assert missing == {n for n in numbers if flow.dominates(upper, n)}
    for later in numbers:
        for earlier in numbers:
            if earlier == later or not reach(earlier, -1) & ends:
                continue
            assert flow.postdominates(later, earlier) == (not reach(earlier, later) & ends)
    covered = [offset for block in flow.blocks for offset in range(block.start, block.end, 16)]
    assert len(covered) == len(set(covered)) and all(flow.block_at(offset) is not None for offset in covered)
    for block in flow.blocks:
        assert all(block.number in flow.blocks[other].predecessors for other in block.successors)
