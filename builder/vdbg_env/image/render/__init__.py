"""Renderers of a plan: Dockerfile, Apptainer, manifests."""
