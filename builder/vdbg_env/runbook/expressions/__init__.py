"""Conditions and templates, and the names that they may use."""
