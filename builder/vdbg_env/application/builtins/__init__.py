"""The built-in steps and readers of runbooks: one module each in `steps` or `readers`, found by the registry."""
