"""This machine: its processes, programs, clock and dump pipes."""
