"""What the requests of LibreChat's dialect share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.service.dialects.librechat.credentials import Credentials
from atoll.service.dialects.librechat.programmatic import Continuations
from atoll.service.dialects.librechat.storage import FileStore
from atoll.service.dialects.librechat.workspace import Runtimes

if TYPE_CHECKING:
    from atoll.service.core.service import Service


class LibreChat:
    """Files, runtimes and waiting guests of LibreChat's users, and how they sign in."""

    def __init__(self, service: Service) -> None:
        self.files, self.runtimes = FileStore(service), Runtimes()
        self.credentials = Credentials(service.settings, service.keys)
        self.continuations = Continuations()
