"""Where the steps of a runbook run: this machine, containers, or a recording."""
