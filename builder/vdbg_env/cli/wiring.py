"""Makes the real engines; nothing else imports them, so every test may bring its own."""
