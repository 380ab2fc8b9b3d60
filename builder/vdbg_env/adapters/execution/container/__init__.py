"""Steps in containers of a Docker Engine."""
