"""The console: a web page over the API, its routes, and signing in to it."""
