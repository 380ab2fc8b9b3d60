"""GPU core dumps and source chains as text and JSON."""
