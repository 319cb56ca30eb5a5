"""One server for all tests of a worker; a key and a tenant for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import console_browser as browser
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


@pytest.fixture(scope="module")
def chromium() -> Iterator[browser.Browser]:
    with browser.browser() as started:
        yield started


@pytest.fixture
def signed_in(
    chromium: browser.Browser, service: OwnService
) -> Iterator[Callable[..., browser.Page]]:
    """Open a page that is signed in by a link, of a tenant of its own; say what went wrong in it."""
    opened: list[browser.Page] = []

    def open_page(tenant: str, **options: Any) -> browser.Page:
        ident = service.add_key(tenant=tenant, scopes=SCOPES).split("_")[1]
        secret = service.call(lambda: service.service.signins.secret(ident))
        page = chromium.page(**options)
        page.goto(f"{service.url}/console#login={secret}")
        page.wait("document.querySelector('.rail')")
        opened.append(page)
        return page

    yield open_page
    for page in opened:
        page.run("1")
        assert [one for one in page.faults if "/console/displays/" not in one] == []
        assert {
            one.partition("?")[0]
            for one in page.requests
            if not one.startswith((service.url, "blob:", "about:"))
        } <= {one for one in page.requests if one.endswith("/favicon.ico")}, "a browser's own"
