"""Atoll in other people's frameworks: one file each, which needs that framework."""
