"""Certificates: every download trusts what the system trusts, and a refusal says what to do.

A network with a certificate authority of its own adds it to the system's store. Python's `ssl` and
httpx2 read that store; Deno, pip and uv read it if they are told to.
"""

from __future__ import annotations

import os
import ssl

_SIGNS = (
    "unknownissuer",
    "certificate verify failed",
    "certificate_verify_failed",
    "invalid peer certificate",
    "self-signed certificate",
    "self signed certificate",
    "unable to get local issuer",
)
ADVICE = (
    "the server's certificate is not trusted on this machine. If your network has a certificate "
    "authority of its own, add it to the system (on Debian: copy it to "
    "/usr/local/share/ca-certificates/NAME.crt and type: sudo update-ca-certificates), "
    "or set SSL_CERT_FILE to a file that has it"
)


def download_environment() -> dict[str, str]:
    """Return the environment for a program that downloads: it uses the system's certificates.

    What the caller's environment says itself is kept; an empty variable says nothing.
    """
    environment = {"DENO_TLS_CA_STORE": "system,mozilla", "UV_SYSTEM_CERTS": "true"}
    if (bundle := _bundle()) is not None:
        environment["REQUESTS_CA_BUNDLE"] = bundle  # pip: weaker than its own setting `cert`
    return environment | {
        name: value for name, value in os.environ.items() if value or name not in environment
    }


def explain(failure: str, said_before: str = "") -> str:
    """Return the failure's text, with what to do in front if a certificate was refused."""
    if is_refusal(f"{said_before}\n{failure}"):
        return f"{ADVICE}. What was said: {failure}"
    return failure


def is_refusal(failure: str) -> bool:
    """Return whether a failure's text says that a certificate was not trusted."""
    return any(sign in failure.lower() for sign in _SIGNS)


def _bundle() -> str | None:
    """Return the file with the system's certificates; SSL_CERT_FILE names another one."""
    default = ssl.get_default_verify_paths().cafile
    return default or next((bundle for bundle in _BUNDLES if os.path.isfile(bundle)), None)


_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
