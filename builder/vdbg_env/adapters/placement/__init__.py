"""Placements: how the ranks of an attempt are started, followed and ended, on one machine or on many."""
