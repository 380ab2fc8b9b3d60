"""A step that its scheduler stops is neither silent nor over its time."""

import time

import pytest

from vdbg_env.supervisor.watch import AwakeClock


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the machine's clock, to be set."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    return clock


@pytest.mark.parametrize("late", [0.0, 0.3, 4.9])
def test_a_busy_machine_takes_no_time_from_a_step(machine: list[float], late: float) -> None:
    clock = AwakeClock()
    began = clock.now()
    machine[0] += 1.0 + late
    clock.waited(began, 1.0)
    assert clock.now() == began + 1.0 + late
    assert clock.notes() == []


def test_a_night_without_a_processor_does_not_count(machine: list[float]) -> None:
    clock = AwakeClock()
    for night in (3600.0, 60.0):
        began = clock.now()
        machine[0] += 1.0 + night
        clock.waited(began, 1.0)
        assert clock.now() == pytest.approx(began + 1.0)
    assert clock.notes() == ["it was stopped for 3660 s (by its scheduler, or SIGSTOP), which no time limit counts"]
