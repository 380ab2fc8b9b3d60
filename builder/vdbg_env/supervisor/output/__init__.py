"""The output of a step: read, redacted, matched and written as it arrives."""
