"""Pages of the web for a model to read: from hosts that are allowed, within caps, as text.

SECURITY: whoever asks is hostile, and so is the server. Only hosts of the policy are asked, at an
address that was checked; no cookie, password or proxy is ever used.
"""

from atoll.web.fetcher import Fetcher
from atoll.web.policy import Page, WebPolicy

__all__ = ["Fetcher", "Page", "WebPolicy"]
