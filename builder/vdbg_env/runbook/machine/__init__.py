"""The state machine of a run: plan, decide, judge, advance."""
