"""The `atoll` command: run a program, talk to a sandbox, ask what this host allows."""
