"""Several tool calls in one turn: found in the code, gated, run in waves."""
