"""What the daemon and its clients say to each other: one peer class, and a form for each thing."""
