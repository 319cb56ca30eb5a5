"""A trajectory as one page for a browser."""

from atoll.trajectory.html.page import page

__all__ = ["page"]
