"""Built-in readers: what a step left, turned into findings."""
