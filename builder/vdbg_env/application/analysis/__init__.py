"""Analyse what a crash left: binaries, cores, addresses and logs."""
