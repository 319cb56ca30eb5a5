"""The protocol of the daemon and its clients: one peer class, and the encodings of messages."""
