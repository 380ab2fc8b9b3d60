"""A matcher keeps what a line says, not how a terminal was to paint it."""

from vdbg_env.supervisor.job import MatcherOrder
from vdbg_env.supervisor.output.capture import LineMatcher


def test_colours_hide_no_match_and_are_not_kept() -> None:
    matcher = LineMatcher(MatcherOrder(name="frame", pattern=r'^  File "(?P<file>[^"]+)"'))
    assert matcher.look(b'\x1b[0;36m  File "\x1b[1m/srv/model.py\x1b[0m", line 42', "stderr", 7, 99)
    (found,) = matcher.kept
    assert (found.text, found.groups, found.line) == ('  File "/srv/model.py", line 42', {"file": "/srv/model.py"}, 7)
