"""Builders of images: buildx, BuildKit over the SDK, the classic builder and the host itself."""
