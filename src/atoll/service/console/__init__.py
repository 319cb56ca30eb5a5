"""The console at /console: pages of our own for the routes of the service, and signing in to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.service.console.pages import routes
from atoll.service.console.signin import SignIns

if TYPE_CHECKING:
    from atoll.service.core.service import Service


def install(service: Service) -> None:
    """Serve the console with a service."""
    signins = SignIns(service.keys, service.ledger)
    service.sign_in, service.login_secret = signins.principal, signins.secret
    service.pages.extend(routes(signins))
