"""Lint of runbooks: names, paths, patterns."""
