"""Measurements, each against a peer in the same run; see docs/lab/benchmarks/."""
