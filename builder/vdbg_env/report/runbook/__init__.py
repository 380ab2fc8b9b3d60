"""Runbooks in words and as JSON."""
