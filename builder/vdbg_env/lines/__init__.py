"""Line packs: where they are kept, how they are made from builds and from stock libraries."""
