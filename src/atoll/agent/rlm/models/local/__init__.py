"""A small language model that runs on this machine: its weights, and a server on loopback."""
