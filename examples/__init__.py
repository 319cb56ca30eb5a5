"""Programs that show what Atoll is for."""
