"""Files for agents: the same operations for the files of every sandbox and of a local folder."""
