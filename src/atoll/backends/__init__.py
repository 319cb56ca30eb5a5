"""The rings. `registry` is the table of them; each is loaded on first use and imports no other."""
