"""What to try next: the runbook's model, its parser and lint, its expressions, and the engine as a state machine."""
