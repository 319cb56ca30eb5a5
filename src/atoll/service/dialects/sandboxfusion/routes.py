"""The routes of SandboxFusion's dialect."""

from __future__ import annotations

from atoll.service.dialects.sandboxfusion import running, wire
from atoll.service.http.route import Route

PATIENCE = 5.0
"""Seconds that a request may wait because its key makes too many."""


def routes() -> list[Route]:
    """Return every route of the dialect."""
    return [
        Route("GET", "/v1/ping", running.ping, None),
        *(
            Route(
                "POST",
                path,
                handler,
                "execute",
                body,
                new_work=True,
                refuse=wire.refusal,
                basic=True,
                patience=PATIENCE,
            )
            for path, handler, body in (
                ("/run_code", running.run_code, wire.RunCode),
                ("/run_jupyter", running.run_jupyter, wire.RunJupyter),
            )
        ),
    ]
