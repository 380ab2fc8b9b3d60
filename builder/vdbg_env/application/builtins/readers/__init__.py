"""Built-in readers: turn what a step left into findings."""
