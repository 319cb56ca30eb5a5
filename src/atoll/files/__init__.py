"""Files for agents: one set of operations, wherever the files are."""
