"""Run a runbook: request, begin, execute, report."""
