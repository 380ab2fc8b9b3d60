"""Line packs: made, searched, kept and carried."""
