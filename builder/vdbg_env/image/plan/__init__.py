"""The plan of a build, ordered and hashed."""
