"""Ways to answer a question over a context, and the planner that chooses one."""
