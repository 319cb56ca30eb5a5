"""E2B's API on Atoll's sessions: its unmodified SDKs create sandboxes, run code and use files."""
