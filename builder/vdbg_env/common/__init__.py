"""What every room may use: errors, resources, YAML with positions, console."""
