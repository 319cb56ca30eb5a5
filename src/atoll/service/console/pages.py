"""The console's pages and files, and what guests display, each with the policy it needs.

SECURITY: pages of the console run scripts of this origin alone, and no text becomes markup
(trusted types). What a guest displays is served with a policy that makes it an opaque origin
without requests to others, also when its address is opened by itself. It never gets
`allow-same-origin`.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Self

from msgspec import Struct
from starlette.responses import Response

from atoll import __version__
from atoll.service.api.executions import display_of
from atoll.service.console.signin import FRAMES, same_origin
from atoll.service.http import bodies
from atoll.service.http.problems import Problem
from atoll.service.http.requests import Json
from atoll.service.http.route import Route

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

    from atoll.service.access.keys import Principal
    from atoll.service.http.requests import ApiRequest

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; frame-src 'self'; manifest-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
DISPLAY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'; "
)
_ALONE = {
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-dns-prefetch-control": "off",
}
_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
_PICTURES = {"image/png": b"\x89PNG\r\n\x1a\n", "image/svg+xml": b""}
_SHORTEST_PACKED = 1024
_FRAME_HEAD = """<!doctype html><meta charset="utf-8"><style>
:root {{ color-scheme: {scheme} }}
body {{ font: 13px/1.5 system-ui, sans-serif; margin: 8px; overflow-wrap: anywhere }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
th, td {{ padding: 3px 10px; text-align: right; border: 0; border-bottom: 1px solid #8884 }}
</style>
"""


class SignIn(bodies.Body, kw_only=True):
    """POST /console/login: a key, or the secret of a link."""

    key: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file of the console, as it is and packed."""

    data: bytes
    packed: bytes
    media_type: str


class Me(Struct, kw_only=True):
    """Who is signed in, and what the console can do."""

    key: str
    tenant: str
    version: str = __version__
    scopes: list[str]
    editor: bool
    terminal: bool

    @classmethod
    def of(cls, principal: Principal, **more: str) -> Self:
        """Return who a principal is."""
        files, scopes = _static_files()[1], sorted(principal.scopes)
        return cls(
            key=principal.key,
            tenant=principal.tenant,
            scopes=scopes,
            editor="vendor/codemirror-view.js" in files,
            terminal="vendor/xterm-xterm.js" in files,
            **more,
        )


class SignedIn(Me, kw_only=True):
    """Who is signed in, and the token that each request of the page needs."""

    token: str


async def _login(call: ApiRequest) -> Json[SignedIn]:
    """Sign in to the console."""
    if "origin" not in call.request.headers or not same_origin(call.request):
        raise Problem(403, "origin", "signing in is for the console: programs send their key")
    given = await call.json(SignIn)
    signins = call.service.signins
    cookie, token, who = signins.sign_in(call.request, key=given.key, link=given.link)
    headers = {"set-cookie": cookie, "cache-control": "no-store"}
    return Json(SignedIn.of(who, token=token), headers=headers)


async def _logout(call: ApiRequest) -> Response:
    """Sign out of the console."""
    return Response(None, 204, {"set-cookie": call.service.signins.sign_out(call.request)})


async def _home(_call: ApiRequest) -> Response:
    """Lead to the console."""
    return Response(None, 307, {"location": "/console"})


async def _index(_call: ApiRequest) -> Response:
    """Return the console's page."""
    version, files = _static_files()
    page = files["index.html"].data.replace(b"{version}", version.encode())
    headers = {"content-security-policy": PAGE_POLICY, "cache-control": "no-cache", **_ALONE}
    return Response(page, 200, headers, _TYPES["html"])


async def _static(call: ApiRequest) -> Response:
    """Return a file of the console; its address changes when any of them does."""
    version, files = _static_files()
    file = files.get(call.path["path"])
    if file is None or call.path["version"] != version:
        raise Problem(404, "not_found", "the console has no such file: load the page again")
    headers = {"cache-control": "public, max-age=31536000, immutable", "vary": "accept-encoding"}
    headers |= {"content-security-policy": PAGE_POLICY, **_ALONE}
    data = file.data
    if "gzip" in call.request.headers.get("accept-encoding", "") and file.packed:
        data, headers["content-encoding"] = file.packed, "gzip"
    return Response(data, 200, headers, file.media_type)


async def _me(call: ApiRequest) -> Me:
    """Say who is signed in."""
    return Me.of(call.principal)


async def _display(call: ApiRequest) -> Response:
    """Return what a guest displays, for a picture or a sandboxed frame."""
    shown = display_of(call)
    data, kind = shown.data, shown.media_type
    if kind in _PICTURES:
        if not data.startswith(_PICTURES[kind]):
            raise Problem(422, "display", f"it says that it is {kind}, and is not")
    elif kind == "text/html":
        scheme = "dark" if call.query("scheme") == "dark" else "light"
        data, kind = _FRAME_HEAD.format(scheme=scheme).encode() + data, _TYPES["html"]
    else:
        kind = _TYPES["txt"]
    return Response(data, 200, _display_headers(scripts=call.flag("scripts")), kind)


def _display_headers(*, scripts: bool) -> dict[str, str]:
    sandbox = "sandbox allow-scripts; script-src 'unsafe-inline'" if scripts else "sandbox"
    policy = DISPLAY_POLICY + sandbox
    return {"content-security-policy": policy, "cache-control": "private, max-age=600", **_ALONE}


@functools.cache
def _static_files() -> tuple[str, dict[str, StaticFile]]:
    """Return the files of the console by path, and a version that changes with each of them."""
    digest, files = hashlib.sha256(), {}
    for path, data in sorted(_walk(resources.files(__package__) / "static", "")):
        digest.update(f"{path}\0{len(data)}\0".encode() + data)
        packed = gzip.compress(data, 6, mtime=0) if len(data) >= _SHORTEST_PACKED else b""
        ending = path.rpartition(".")[2]
        files[path] = StaticFile(data, packed, _TYPES.get(ending, "application/octet-stream"))
    return digest.hexdigest()[:16], files


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    """Yield path and bytes of all files below a folder."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry.read_bytes()


ROUTES = (
    Route("GET", "/", _home, None, page=True),
    Route("GET", "/console", _index, None, page=True),
    Route("GET", "/console/", _home, None, page=True),
    Route("POST", "/console/login", _login, None, SignIn, page=True),
    Route("POST", "/console/logout", _logout, "", page=True),
    Route("GET", "/console/me", _me, "", page=True),
    Route("GET", FRAMES + "{execution}/{number}", _display, "execute", page=True),
    Route("GET", "/console/files/{version}/{path:path}", _static, None, page=True),
)
"""The console's routes."""
