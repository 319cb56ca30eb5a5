"""Sources of the component: there, each is a top-level module, not part of this package."""
