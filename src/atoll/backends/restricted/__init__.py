"""The `restricted` backend: a guard and limits, in a jail where there is one.

The worker imports this package too, so nothing is imported here: `sandbox` has the class.
"""
