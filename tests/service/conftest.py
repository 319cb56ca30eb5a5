"""One server for all tests of a worker; a key and a tenant for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from answers import fault
from clients import Api
from own_service import SENT, OwnService

from atoll.service.access.keys import SCOPES


@pytest.fixture(autouse=True)
def _answers_have_their_schemas() -> Iterator[None]:
    """Fail a test in which a service sent an answer that /openapi.json does not allow."""
    yield
    sent, SENT[:] = SENT[:], []
    wrong = {text for answer in sent if (text := fault(answer))}
    assert not wrong


@pytest.fixture
def service(own_service: OwnService) -> OwnService:
    own_service.start()
    return own_service


@pytest.fixture
def api(service: OwnService, request: pytest.FixtureRequest) -> Iterator[Api]:
    """A client of a tenant of its own; its sessions end with the test."""
    tenant = f"t{abs(hash(request.node.nodeid))}"
    with Api(service, service.add_key(tenant=tenant, scopes=SCOPES)) as client:
        yield client
        for one in client.get("/api/v1/sessions?limit=200").json()["items"]:
            client.delete(f"/api/v1/sessions/{one['id']}")


@pytest.fixture
def other(service: OwnService) -> Iterator[Api]:
    """A client of another tenant."""
    with Api(service, service.add_key(tenant="stranger", scopes=SCOPES)) as client:
        yield client
