"""Files through which a supervisor and its engine agree: locks, results and ownership."""
