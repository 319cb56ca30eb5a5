"""The jail: Linux's own walls, built by system calls, without a binary and without root.

A `supervisor` process, one for each host process, forks and supervises; `steps` is the order in
which the walls go up; one file a mechanism. The host talks to it through `client`.
"""
