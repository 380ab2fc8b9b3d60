"""Run a runbook: begin it, run its steps, keep what they leave, and show what was recorded."""
