"""From a crashed GPU kernel to its source line."""

__version__ = "0.1.0"
# Set by the person who publishes the repository. While they are empty, the package names neither, and links of its
# README stay relative.
REPOSITORY = ""
AUTHOR = ""
