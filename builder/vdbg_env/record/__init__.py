"""What happened: the event log, the run directory, redaction, resume and the difference of two runs."""
