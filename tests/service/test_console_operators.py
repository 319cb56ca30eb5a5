"""The console for operators, in a real Chromium: other tenants' sessions, limits, the audit log."""

from __future__ import annotations

import console_browser as browser
import pytest
from clients import Api

from atoll.service.access.keys import SCOPES, USUAL_SCOPES

pytestmark = pytest.mark.skipif(browser.find() is None, reason="there is no Chromium on the PATH")
ROW = "[...document.querySelectorAll('tr[data-row]')].find((row) => row.textContent.includes({!r}))"


def press(page, text, inside="document"):
    """Press the button with this text."""
    found = (
        f"[...{inside}.querySelectorAll('button')].find((b) => b.textContent.trim() === {text!r})"
    )
    page.wait(found)
    page.run(f"{found}.click()")


def test_an_operator_ends_a_session_of_another_tenant_and_the_log_says_so(signed_in, service):
    with Api(service, service.add_key(tenant="watched", scopes=USUAL_SCOPES)) as user:
        session = user.post("/api/v1/sessions", json={"metadata": {"name": "theirs"}}).json()["id"]
        page = signed_in("ops")
        page.press("g")
        page.press("p")
        row = ROW.format("watched")
        page.wait(row)
        page.run("document.querySelector('th .sort').click()")
        assert page.run("document.querySelector('th').getAttribute('aria-sort')") == "ascending"
        press(page, "Pause", row)
        page.see("Paused. Its next call lets it go on.")
        assert user.get(f"/api/v1/sessions/{session}").json()["state"] == "paused"
        press(page, "End", row)
        press(page, "End it", "document.querySelector('dialog')")
        page.see("The session has ended.")
        page.wait(f"!{row}")
        assert user.get(f"/api/v1/sessions/{session}").status_code == 410
        press(page, "Audit log")
        page.wait(ROW.format("session ended"))
        page.run(
            "const s = document.querySelector('[aria-label=\"Search the audit log\"]');"
            f"s.value = {session!r}; s.dispatchEvent(new Event('input'))"
        )
        page.wait("document.querySelectorAll('tr[data-row]').length === 2")


def test_limits_of_a_key_are_changed_in_the_dialog(signed_in, service):
    key = service.add_key(tenant="limited", name="the trainer")
    page = signed_in("ops2")
    page.goto(f"{service.url}/console#/keys")
    row = ROW.format("the trainer")
    press(page, "Limits", row)
    page.wait("document.querySelector('dialog input')")
    fields = page.run("document.querySelectorAll('dialog input').length")
    with Api(service, key) as user:
        quota = user.get("/api/v1/whoami").json()["quota"]
        assert fields == len(quota)
        named = "[...document.querySelectorAll('dialog label')].find((l) => l.textContent.startsWith({!r}))"
        for title, value in (("Sessions", "3"), ("Memory, MB", "512"), ("CPU seconds a day", "60")):
            page.run(f"{named.format(title)}.querySelector('input').value = {value!r}")
        press(page, "Change", "document.querySelector('dialog')")
        page.see("The limits are changed.")
        changed = {"sessions": 3, "memory_bytes": 512 << 20, "cpu_seconds_per_day": 60}
        assert user.get("/api/v1/whoami").json()["quota"] == {**quota, **changed}


def test_a_user_has_no_page_for_operators(chromium, service):
    ident = service.add_key(tenant="plain", scopes=USUAL_SCOPES).split("_")[1]
    secret = service.call(lambda: service.service.signins.secret(ident))
    page = chromium.page()
    page.goto(f"{service.url}/console#login={secret}")
    page.wait("document.querySelector('.rail')")
    assert page.run("document.querySelector('[data-path=operators]')") is None
    assert "admin" in SCOPES
