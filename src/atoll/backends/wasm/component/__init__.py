"""Sources of the component: each is a module of its own there, not of this package."""
