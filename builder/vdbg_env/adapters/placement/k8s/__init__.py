"""Ranks on Kubernetes, by its official client: an Indexed Job starts them, a watch on its pods follows them."""
