"""Servers in sessions, shown to browsers: each port of a session at a host name of its own."""
