"""Text to and from a model: quoting, redaction, sanitising, spilling, summaries, token counts."""
