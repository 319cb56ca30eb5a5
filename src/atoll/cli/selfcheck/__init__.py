"""`atoll doctor --attack`: attacks on this host's own sandboxes, and their report."""
