"""Connect the ports of the application to their adapters, by subject; adapters are made here and nowhere else.

A command imports the module of its subject. What all of a subject needs is imported at the top of its module; an
engine's client and other rooms are imported by the function that makes one, so a command loads what it uses.
"""
