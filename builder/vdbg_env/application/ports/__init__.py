"""The outside world as Protocols of few verbs, and the values that cross them, each module one part of it.

Adapters implement these and are made only in `vdbg_env.cli.composition`; tests give typed fakes for decisions only.
What a module only names in a signature it imports for type checkers alone: `locate` must not load the planner of images
because another command does.
"""
