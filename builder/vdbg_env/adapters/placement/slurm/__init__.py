"""Ranks through Slurm, by its own programs: `srun` starts them, `scancel` ends them, `squeue` says what runs."""
