"""What text says: logs, tools' reports and kernel messages turned into typed evidence, triage and verdicts."""
