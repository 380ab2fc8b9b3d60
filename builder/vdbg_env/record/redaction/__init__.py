"""Redaction of secrets, in text, binaries and whole runs."""
