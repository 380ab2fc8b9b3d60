"""The share of the processor that a guard takes, counted: how often it and its supervisor wake up."""

import json
from pathlib import Path

from tests.unit.cli.runbook.test_guard import guarded

# Prints how often its supervisor and the guard went to sleep, in a silent time, and while it printed lines.
COUNTS = """
import json, os, time

def asleep():
    counts, process = [], os.getppid()
    for _ in range(2):
        count = 0
        for task in os.listdir(f"/proc/{process}/task"):
            fields = dict(line.split(":", 1) for line in open(f"/proc/{process}/task/{task}/status") if ":" in line)
            count += int(fields["voluntary_ctxt_switches"])
        counts.append(count)
        process = int(fields["PPid"])
    return counts

def during(work):
    before, began = asleep(), time.monotonic()
    work()
    return [after - first for after, first in zip(asleep(), before)], time.monotonic() - began

def lines():
    for _ in range(200):
        print("a line", flush=True)
        time.sleep(0.005)

time.sleep(2)
found = [during(lambda: time.sleep(4)), during(lines)]
with open("found.json", "w") as file:
    json.dump(found, file)
"""
A_SECOND = 8  # 4 were seen of each, on two idle cores
A_LINE = 4  # of the supervisor, which reads a line and writes it twice; the guard reads none


def test_a_guard_sleeps_while_its_command_is_silent_and_wakes_up_a_few_times_for_a_line(tmp_path: Path) -> None:
    assert guarded(tmp_path, COUNTS).status == 0
    (silent, seconds), (printing, printed_s) = json.loads((tmp_path / "found.json").read_text())
    assert max(silent) <= A_SECOND * seconds
    supervisor, guard = printing
    assert supervisor <= A_SECOND * printed_s + A_LINE * 200
    assert guard <= A_SECOND * printed_s
