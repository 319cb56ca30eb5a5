"""Workspaces behind a shell: a stranger's sandbox that runs commands, and this machine itself."""
