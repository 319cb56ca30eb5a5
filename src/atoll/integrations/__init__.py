"""Atoll in other people's frameworks: a file each, loaded by whoever has the framework."""
