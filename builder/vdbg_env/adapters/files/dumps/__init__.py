"""Dumps in a folder of this machine, and their copies elsewhere."""
