"""Values in, text out: every table, page and JSON document the user sees is written here."""
