"""A fleet: sandboxes on many machines, placed by Ray, their states in an object store."""

from atoll.fleet.client import Fleet, ItemResult

__all__ = ["Fleet", "ItemResult"]
