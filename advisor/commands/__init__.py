"""One module per command of the `advisor` program; each is imported only when its command runs."""
