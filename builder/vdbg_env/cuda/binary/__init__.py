"""Binary containers: ELF, ar, fat binaries, cubins."""
