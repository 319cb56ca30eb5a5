"""A trajectory as one page for a browser."""

from atoll.agent.trajectory.html.page import page

__all__ = ["page"]
