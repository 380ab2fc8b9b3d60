"""Files that are read: binaries, core dumps, logs and source trees."""
