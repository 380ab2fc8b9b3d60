"""One supervisor process per step: it starts the workload, takes its output, ends its tree, and writes how it ended.

It is a program of its own (`python -I -S .../scribe`), uses the standard library only, and needs the engine for nothing
once it has its orders. So the engine's death loses no byte and kills no workload; see docs/08-execution.md.
"""
