"""Who may do what: keys, quotas, permissions."""
