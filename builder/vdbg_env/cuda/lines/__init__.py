"""Line tables, and the addresses that they describe."""
