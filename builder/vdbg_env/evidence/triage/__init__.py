"""Which failure is this: rules as data, a scan in constant memory, and a verdict that finds the root among cascades."""
