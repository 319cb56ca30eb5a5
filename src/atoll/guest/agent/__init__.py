"""What guest code may call by name: helpers, tools, queries to a model."""
