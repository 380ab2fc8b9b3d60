"""What is true today of flags, environment variables and advice, as dated tables, and what to use instead."""
