"""The protocol of the daemon and its clients: one peer class, and encodings of what they send."""
