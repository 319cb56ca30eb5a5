"""Ways to start the runtime: as a process, in a container, inside another program."""
