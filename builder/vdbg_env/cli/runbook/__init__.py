"""Commands about runbooks and runs."""
