"""Record the requests that a server gets."""
