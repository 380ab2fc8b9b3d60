"""Line tables for libraries that were released without them."""
