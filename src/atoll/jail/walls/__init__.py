"""The walls of a jail, one mechanism a file; `steps` has their order."""
