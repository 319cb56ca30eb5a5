"""What is wrong between http and https, in words: a connection's own errors mislead."""

from __future__ import annotations

import asyncio
import ssl
from urllib.parse import urlsplit

from atoll.egress import certificates
from atoll.errors import BackendUnavailableError

PROBE_SECONDS = 2.0
_NOT_TLS = ("wrong_version_number", "record layer failure", "unexpected_eof", "http_request")
_OTHER_NAME = ("hostname mismatch", "ip address mismatch")
TRUST = (
    "If it is a certificate of the service's own, trust it with: "
    "export SSL_CERT_FILE=FILE (the file of `atoll serve --tls-certificate`)"
)


def refusal(url: str, failure: str) -> BackendUnavailableError | None:
    """Return the error for a connection that TLS refused; None if it was something else."""
    said = failure.lower()
    if any(text in said for text in _OTHER_NAME):
        host = urlsplit(url).hostname
        why = f"the certificate of {url} is for another name than {host}"
        return BackendUnavailableError("remote", why, "Use the name that the certificate has")
    if certificates.is_refusal(failure):
        reason = failure.rpartition("verify failed:")[2].partition(" (_ssl")[0].strip()
        why = f"the certificate of {url} is not trusted on this machine: {reason}"
        return BackendUnavailableError("remote", why, TRUST)
    if url.startswith("https:") and any(text in said for text in _NOT_TLS):
        return _other_scheme(url, "https", "http")
    return None


async def expected(url: str) -> BackendUnavailableError | None:
    """Return the error for an http:// URL at which the server speaks https; None otherwise.

    Such a server closes the connection without a word, so this asks it for a TLS handshake.
    """
    place = urlsplit(url)
    if place.scheme != "http" or place.hostname is None:
        return None
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            _, writer = await asyncio.open_connection(
                place.hostname, place.port or 80, ssl=context, ssl_handshake_timeout=PROBE_SECONDS
            )
    except (OSError, TimeoutError):
        return None
    writer.transport.abort()
    return _other_scheme(url, "http", "https")


def _other_scheme(url: str, asked: str, spoken: str) -> BackendUnavailableError:
    better = spoken + url.removeprefix(asked)
    return BackendUnavailableError(
        "remote", f"what answers at {url} speaks {spoken}, not {asked}", f"Use {better}"
    )
