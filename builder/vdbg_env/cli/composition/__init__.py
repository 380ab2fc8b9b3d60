"""What several commands need of line packs and of runbooks, imported by the function that makes it."""
