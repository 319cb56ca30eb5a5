"""Servers in a guest, reached from outside: a local listener, and the relay of its connections."""
