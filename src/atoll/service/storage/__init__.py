"""What outlives a request or the process: the database, objects, idempotent answers, restarts."""
