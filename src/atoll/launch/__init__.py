"""Guests on their way up: interpreter, jail, first words; warm ones; the sandbox around one."""
