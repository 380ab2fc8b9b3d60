"""What runs on a rank's own node: it takes the orders of all ranks, and leaves one record."""
