"""The result of a run as one value, from its record: steps, findings, next steps, source lines, warps."""
