"""Build profiles: what an image is to be."""
