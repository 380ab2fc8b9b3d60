"""Write what is known of GPU core dumps: those that are stored, and those that were asked for."""
