"""What to type to install an extra of Atoll; the one place of the command line that says it."""

from __future__ import annotations


def pip_install(*extras: str) -> str:
    """Return the command that installs extras."""
    return f"pip install 'atoll[{','.join(extras)}]'"
