"""Handlers of the routes below /api/v1, one file for each kind of resource."""
