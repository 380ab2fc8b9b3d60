"""Dated knowledge of vLLM and its settings, applied to what a user gives."""
