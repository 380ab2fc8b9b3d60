"""Runbook files: schema, parsing, library and locations."""
