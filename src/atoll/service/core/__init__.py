"""The service without HTTP: sessions, executions, runs, processes."""
