"""Draw docs/assets/console.png: a session of a real service, in a real Chromium.

    .venv/bin/python tools/console_picture.py

The service, the sandbox and the browser are those of the tests. Run it again after a change to the
console's looks.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/service")]

import clients  # type: ignore[import-not-found]  # noqa: E402
import console_browser as browser  # type: ignore[import-not-found]  # noqa: E402
import own_service  # type: ignore[import-not-found]  # noqa: E402
from PIL import Image  # noqa: E402

from atoll.service.access.keys import SCOPES  # noqa: E402

TARGET = ROOT / "docs/assets/console.png"
COLOURS = 96
LOG = "\n".join(
    f"12:{n // 60 % 60:02}:{n % 60:02} {('INFO', 'INFO', 'WARN', 'INFO', 'ERROR')[n * 7 % 5]} "
    f"worker-{n * 3 % 8} {('accepted', 'timeout while reading', 'finished in 312 ms')[n % 3]}"
    for n in range(20_000)
)
CELLS = (
    (
        "from collections import Counter\n"
        "lines = context.splitlines()\n"
        "levels = Counter(line.split()[1] for line in lines)\n"
        "print(f'{len(lines):,} lines')\n"
        "levels"
    ),
    (
        "class Table:\n"
        "    def _repr_html_(self):\n"
        "        rows = ''.join(f'<tr><td>{k}<td>{n:,}' for k, n in levels.most_common())\n"
        "        return f'<table><tr><th>level<th>lines{rows}</table>'\n\n"
        "Table()"
    ),
    (
        "slow = Counter(line.split()[2] for line in lines if 'timeout' in line)\n"
        "print(*(f'{worker}  {count:,}' for worker, count in slow.most_common(3)), sep='\\n')"
    ),
)


def main() -> int:
    """Start a service, use it, take the picture, make it small."""
    with tempfile.TemporaryDirectory() as folder:
        service = own_service.OwnService(Path(folder), tier="bare")
        service.start()
        try:
            with clients.Api(service, service.add_key(scopes=SCOPES)) as api:
                session = _used(api)
            _draw(service, session)
        finally:
            service.stop()
    image = Image.open(TARGET).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(TARGET, optimize=True)
    print(f"{TARGET.relative_to(ROOT)}: {TARGET.stat().st_size:,} bytes")
    return 0


def _used(api: clients.Api) -> str:
    context = api.post("/api/v1/contexts", params={"name": "server.log"}, content=LOG.encode())
    session = api.session(metadata={"name": "log analysis"}, context={"id": context.json()["id"]})
    for code in CELLS:
        api.run(session, code)
    api.post(f"{session}/checkpoints", json={"name": "before clustering"})
    for name in ("by worker", "by hour"):
        api.post(f"{session}/fork", json={"name": name})
    return str(session.rpartition("/")[2])


def _draw(service: own_service.OwnService, session: str) -> None:
    ident = service.key.split("_")[1]
    secret = service.call(lambda: service.service.login_secret(ident))
    with browser.browser() as chromium:
        page = chromium.page(1280, 900)
        page.goto(f"{service.url}/console#login={secret}")
        page.wait("document.querySelector('.rail')")
        page.goto(f"{service.url}/console#/sessions/{session}")
        page.wait("document.querySelectorAll('.cell footer .badge').length === 3")
        page.wait("document.querySelector('.code-editor, .code-area')")
        page.wait("document.querySelector('iframe')?.style.height")
        page.run("new Promise((done) => setTimeout(done, 1000))")  # frames are drawn
        page.run("scrollTo(0, 0)")
        page.picture(TARGET)


if __name__ == "__main__":
    sys.exit(main())
