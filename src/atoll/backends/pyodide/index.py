"""Finds a Pyodide: at a URL, at several in turn, in a folder, or installed (index_url)."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.backends.pyodide import deno, distribution
from atoll.backends.pyodide.distribution import FILES, VERSION, Distribution
from atoll.egress import certificates
from atoll.errors import BackendUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

CDN_URL = f"https://cdn.jsdelivr.net/npm/pyodide@{VERSION}/"
TIMEOUT_SECONDS = 20
MAX_BYTES = 64 << 20


class _FailedError(Exception):
    """One source failed."""


def find(index_url: str | Sequence[str] | None) -> Distribution:
    """Return the distribution to use; BackendUnavailableError if no source has one."""
    if index_url is None:
        return _default()
    urls = [index_url] if isinstance(index_url, str) else index_url
    reasons = []
    for url in urls:
        try:
            return _from(url)
        except _FailedError as exc:
            reasons.append(f"{url}: {exc}")
    raise BackendUnavailableError(
        deno.BACKEND, f"no Pyodide from {'; '.join(reasons)}", "Check index_url."
    )


def _default() -> Distribution:
    """Return the installed one; else that of the CDN; else the npm package, which is the same."""
    if result := distribution.installed():
        return result
    failures = contextlib.suppress(_FailedError, BackendUnavailableError)
    with distribution.locked("download"), failures:
        return distribution.installed() or _download(CDN_URL, VERSION, pinned=True)
    return distribution.setup()


def _from(url: str) -> Distribution:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme in ("", "file"):
        return _folder(Path(parts.path))
    if parts.scheme not in ("http", "https"):
        raise _FailedError(f"cannot download from an address that begins with {parts.scheme}:")
    name = f"index-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
    with distribution.locked(name):
        folder = distribution.private_folder() / name
        if folder.is_dir():
            return Distribution(folder, _digest(folder))
        return _download(url, name, pinned=False)


def _folder(folder: Path) -> Distribution:
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise _FailedError(f"files are missing: {', '.join(missing)}")
    return Distribution(folder.resolve(), _digest(folder))


def _download(url: str, name: str, *, pinned: bool) -> Distribution:
    distribution.tell(f"fetching Pyodide from {url} ...")
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=distribution.private_folder()) as scratch:
        for file in FILES:
            (Path(scratch) / file).write_bytes(_get(urllib.parse.urljoin(_folder_url(url), file)))
        check = distribution.check if pinned else _anything
        folder = distribution.keep(Path(scratch), name, check)
    return Distribution(folder, name if pinned else _digest(folder))


def _get(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 - http(s)
            data: bytes = answer.read(MAX_BYTES + 1)
    except (OSError, ValueError, urllib.error.URLError) as exc:
        raise _FailedError(certificates.explain(str(exc))) from None
    if len(data) > MAX_BYTES:
        raise _FailedError(f"{url} has more than {MAX_BYTES:,} bytes")
    return data


def _folder_url(url: str) -> str:
    return url if url.endswith("/") else url + "/"


def _digest(folder: Path) -> str:
    """Return a name for the build, by which memory images are found."""
    whole = hashlib.sha256()
    for name in FILES:
        whole.update(hashlib.sha256((folder / name).read_bytes()).digest())
    return whole.hexdigest()[:16]


def _anything(_folder: Path) -> None:
    """Accept any files: the caller chose the URL, and they run jailed and without permissions."""
