"""What a jail uses and what the host offers: control groups, meters, probes."""
