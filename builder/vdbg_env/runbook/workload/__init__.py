"""The workload of a runbook: recognised, and changed by a step."""
