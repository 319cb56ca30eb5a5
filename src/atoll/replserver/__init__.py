"""The REPL server: requests framed on stdio, each run in a fresh sandbox, and its client."""
