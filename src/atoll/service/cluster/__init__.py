"""Several services as one: replicas, forwarding, the fleet's directory, shared keys."""
