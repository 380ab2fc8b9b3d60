"""Settings of the containers that are started from an image."""
