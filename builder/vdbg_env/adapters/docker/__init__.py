"""The Docker Engine over its SDK: images, containers, volumes and archives."""
