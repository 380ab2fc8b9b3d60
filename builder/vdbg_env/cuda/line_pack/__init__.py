"""Line tables apart from code: found by the instructions that they describe."""
