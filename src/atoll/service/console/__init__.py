"""The console at /console: pages of our own for the routes of the service, and signing in to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.service.console.pages import routes
from atoll.service.console.signin import SignIns

if TYPE_CHECKING:
    from atoll.service.service import Service


def install(service: Service) -> SignIns:
    """Serve the console with a service; return what signs people in."""
    signins = SignIns(service.keys, service.ledger)
    service.sign_in = signins.principal
    service.pages.extend(routes(signins))
    return signins
