"""Text of the system: kernel log, Xid, memory kills, driver."""
