"""The `restricted` backend: a guard, a deadline and a memory limit. A seat belt, not a wall.

The worker imports this package too, so nothing is imported here: `sandbox` has the class.
"""
