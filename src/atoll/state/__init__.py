"""Saved states: the signed envelope, its key, the transfer to and from a guest, a store."""
