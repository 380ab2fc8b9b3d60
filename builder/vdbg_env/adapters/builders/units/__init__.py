"""Compile single translation units of a released wheel on this machine, with the compiler that the wheel names."""
