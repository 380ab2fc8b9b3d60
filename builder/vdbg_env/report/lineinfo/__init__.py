"""The proof of line info as text and JSON."""
