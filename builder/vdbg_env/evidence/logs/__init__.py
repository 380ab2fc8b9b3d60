"""Text of programs: log lines, CUDA errors, tracebacks, stacks."""
