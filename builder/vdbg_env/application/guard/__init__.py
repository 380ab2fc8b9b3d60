"""Guarding a production command: it runs once, as it is, and when it dies or hangs, that is explained."""
