"""Build, prove, render and run debug images."""
