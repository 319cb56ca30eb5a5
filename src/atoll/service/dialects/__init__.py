"""Protocols of other clients, translated: E2B, Jupyter, LibreChat."""
