"""Mangled and demangled names."""
