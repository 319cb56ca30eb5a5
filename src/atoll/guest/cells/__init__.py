"""How a cell is compiled and run, and what it shows: the REPL, magics, displays, commands."""
