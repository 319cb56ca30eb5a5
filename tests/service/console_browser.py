"""A real Chromium for tests of the console, driven by its own protocol over a websocket."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 60.0
_OPTIONS = (
    "--headless=new", "--remote-debugging-port=0", "--no-first-run", "--disable-gpu",
    "--disable-dev-shm-usage", "--disable-background-networking", "--disable-sync",
    "--disable-component-update", "--disable-extensions", "--hide-scrollbars", "--mute-audio",
    "--no-default-browser-check", "--host-resolver-rules=MAP evil.example 127.0.0.1",
)  # fmt: skip


def find() -> str | None:
    """The path of a Chromium, or None."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A Chromium with an empty profile, ended with all its processes."""
    from websockets.sync.client import connect

    path = find()
    assert path is not None
    root = ("--no-sandbox",) if os.geteuid() == 0 else ()
    with tempfile.TemporaryDirectory() as profile:
        process = subprocess.Popen(
            [path, *_OPTIONS, *root, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            port, where = _address(Path(profile) / "DevToolsActivePort", process)
            with connect(f"ws://127.0.0.1:{port}{where}", max_size=None, proxy=None) as socket:
                yield Browser(socket)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()


def _address(file: Path, process: subprocess.Popen[bytes]) -> tuple[str, str]:
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError, ValueError):
            port, where = file.read_text().split()
            return port, where
        time.sleep(0.02)
    raise AssertionError("Chromium does not start")


class Browser:
    """The connection to one Chromium: pages, each in a context with cookies of its own."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._next = socket, 0
        self._pages: dict[str, Page] = {}

    def page(self, width: int = 1280, height: int = 860, *, dark: bool = False) -> Page:
        """A new page that shares nothing with others."""
        context = self.send("Target.createBrowserContext")["browserContextId"]
        return self._open(context, width, height, dark=dark)

    def _open(self, context: str, width: int, height: int, *, dark: bool) -> Page:
        target = self.send("Target.createTarget", url="about:blank", browserContextId=context)
        attached = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = self._pages[attached["sessionId"]] = Page(self, attached["sessionId"])
        for name in ("Page", "Runtime", "Log", "Network"):
            page.send(f"{name}.enable")
        page.size(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.send("Emulation.setEmulatedMedia", features=[scheme])
        return page

    def send(self, method: str, /, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result; events on the way are noted."""
        self._next += 1
        wanted = self._next
        message = {"id": wanted, "method": method, "params": params}
        self._socket.send(json.dumps(message | ({"sessionId": session} if session else {})))
        while True:
            found = json.loads(self._socket.recv(timeout=PATIENCE_SECONDS))
            if found.get("id") == wanted:
                assert "error" not in found, (method, found["error"])
                return found["result"]
            if page := self._pages.get(found.get("sessionId", "")):
                page.note(found["method"], found["params"])


class Page:
    """One page, and what went wrong in it."""

    def __init__(self, owner: Browser, session: str) -> None:
        self._owner, self._session = owner, session
        self.faults: list[str] = []
        """Errors in the page's console, reports of its policy, exceptions nobody caught."""
        self.requests: list[str] = []

    def send(self, method: str, /, **params: Any) -> dict[str, Any]:
        return self._owner.send(method, self._session, **params)

    def note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            detail = params["exceptionDetails"]
            self.faults.append(detail.get("exception", {}).get("description", detail["text"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.faults.append(" ".join(str(one.get("value")) for one in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.faults.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def size(self, width: int, height: int) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip

    def goto(self, url: str) -> None:
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """What an expression is worth in the page; a promise is awaited."""
        found = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True,
            userGesture=True,
        )  # fmt: skip
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, script: str, what: str = "") -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            with contextlib.suppress(AssertionError):  # the page is being replaced
                if self.run(f"Boolean({script})"):
                    return
            time.sleep(0.03)
        shown = self.run("document.body?.innerText ?? ''")
        raise AssertionError(f"never so: {what or script}\n{self.faults}\n{shown[:2000]}")

    def see(self, text: str) -> None:
        """Wait until a text is on the page."""
        self.wait(f"document.body?.innerText.includes({json.dumps(text)})", f"{text!r} is shown")

    def click(self, selector: str, text: str = "") -> None:
        """Click on the first element that a selector finds and that has a text."""
        find = f"[...document.querySelectorAll({json.dumps(selector)})].find(e => e.textContent.includes({json.dumps(text)}) && e.offsetParent)"
        self.wait(f"Boolean({find})", f"{selector} with {text!r}")
        self.run(f"{find}.click()")

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.send("Input.insertText", text=text)

    def press(self, key: str, *, control: bool = False) -> None:
        """Press one key; with a text if it is a letter."""
        code = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowDown": 40, "ArrowUp": 38}
        number = code.get(key) or ord(key.upper())
        given = {"key": key, "windowsVirtualKeyCode": number, "modifiers": 2 if control else 0}
        typed = "\r" if key == "Enter" else key if len(key) == 1 and not control else ""
        self.send(
            "Input.dispatchKeyEvent", type="keyDown", **given, **({"text": typed} if typed else {})
        )
        self.send("Input.dispatchKeyEvent", type="keyUp", **given)

    def picture(self, path: Path, *, full: bool = False) -> None:
        found = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        path.write_bytes(base64.b64decode(found["data"]))
