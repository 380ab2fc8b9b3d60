"""Commands about containers and this host."""
