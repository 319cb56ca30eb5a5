"""How fast Atoll is beside what one would use instead; `python -m bench` prints the ratios."""
