"""Threads, tasks and locks: fair shares, background tasks, the loop of the blocking API, forks."""
