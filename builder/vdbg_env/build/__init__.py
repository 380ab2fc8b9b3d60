"""Build a debug image, prove it, and only then give it a name."""
