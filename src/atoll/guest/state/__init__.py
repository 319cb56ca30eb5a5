"""A session saved, restored and cloned."""
