"""Places that have line packs."""
