"""What counts as an end in good order."""

import pytest

from vdbg_env.evidence.finding import Ended, EndedBy


@pytest.mark.parametrize(
    ("ended", "clean"),
    [
        (Ended(by=EndedBy.EXIT, code=0), True),
        (Ended(by=EndedBy.EXIT, code=143), False),
        (Ended(by=EndedBy.SIGNAL, signal=15), False),
        (Ended(by=EndedBy.STOPPED, code=0), True),
        (Ended(by=EndedBy.STOPPED, signal=15), True),  # uvicorn raises the signal again when it has shut down
        (Ended(by=EndedBy.STOPPED, code=143), True),
        (Ended(by=EndedBy.STOPPED, signal=9), False),  # it had to be killed
        (Ended(by=EndedBy.STOPPED, signal=6), False),
        (Ended(by=EndedBy.STOPPED, code=1), False),
        (Ended(by=EndedBy.TIMEOUT, signal=15), False),
    ],
)
def test_a_server_that_we_stop_may_die_of_the_polite_signal_and_nothing_else_may(ended: Ended, clean: bool) -> None:
    assert ended.clean is clean
