"""From a crashed GPU kernel to its source line."""

__version__ = "0.1.0"
