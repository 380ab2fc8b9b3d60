"""One supervisor process per step: it starts the workload, takes its output, ends its tree, and writes how it ended.

It is a separate program (`python -I -S .../supervisor`) that needs no package and does not depend on the
tool that started it once it has its job: the death of the tool loses no byte and kills no
workload (docs/internals/execution.md).
"""
