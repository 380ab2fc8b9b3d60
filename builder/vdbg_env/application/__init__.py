"""What each command does, as a table of contents; the outside world comes in through `ports`."""
