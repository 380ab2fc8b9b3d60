"""Documents as types: the codec that writes them as JSON, and their schemas."""
