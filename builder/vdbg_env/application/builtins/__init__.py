"""The built-in steps and readers of runbooks: one module each, all behind the registry."""
