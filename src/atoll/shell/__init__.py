"""Workspaces behind a shell: a foreign sandbox that runs commands, and this machine itself."""
