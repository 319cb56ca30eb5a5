"""Zygotes: interpreters with libraries imported, and the guests forked off them."""
