"""`atoll serve`: sandboxes over HTTP, for keys and tenants."""
