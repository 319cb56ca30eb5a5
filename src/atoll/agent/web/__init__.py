"""Fetches web pages as text for a model: from allowed hosts, within limits.

SECURITY: both the caller and the server are hostile. Requests go only to hosts of the policy, at an
address that was checked; no cookie, password or proxy is used.
"""

from atoll.agent.web.fetcher import Fetcher
from atoll.egress.url_guard import Page, WebPolicy

__all__ = ["Fetcher", "Page", "WebPolicy"]
