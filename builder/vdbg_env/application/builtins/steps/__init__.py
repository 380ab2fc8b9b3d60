"""Built-in steps: what a runbook can call by name."""
