"""The processes of a step as the kernel holds them together: cgroups, and a list kept on disk."""
