"""Adapters to the outside: each module implements a Protocol of `vdbg_env.application.ports`."""
