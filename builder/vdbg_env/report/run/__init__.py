"""The report of a run: one model and a writer for each format."""
