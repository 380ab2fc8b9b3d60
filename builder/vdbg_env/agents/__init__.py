"""Answers for coding agents: a server of the Model Context Protocol whose tools only read."""
