"""Commands on line tables apart from code."""
