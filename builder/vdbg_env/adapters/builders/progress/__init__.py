"""Progress of a build: the events of every builder in one form."""
