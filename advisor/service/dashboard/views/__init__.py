"""What pages show, as frozen values: pure functions from messages, rows and `now`."""
