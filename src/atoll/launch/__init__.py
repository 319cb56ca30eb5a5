"""Starts guests: interpreter, handshake, warm pool, zygote client, and the sandbox around one."""
