"""The supervisor: the process that starts jails, watches them and reports how they end."""
