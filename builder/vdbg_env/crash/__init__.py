"""What a crash left, read and shown."""
