"""Documents as types: the codec that writes them as JSON, and the schemas made of them."""
