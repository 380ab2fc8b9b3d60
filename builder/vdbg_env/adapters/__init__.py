"""Where things run: each module implements a Protocol of `vdbg_env.application.ports` over one real outside thing."""
