"""The sandbox as its caller has it: verbs, checks, results, tools, and the blocking facade."""
