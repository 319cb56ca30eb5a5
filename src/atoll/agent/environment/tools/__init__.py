"""The tools of an environment: built-ins, the registry, and the log of calls."""
