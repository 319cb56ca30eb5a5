"""A certificate authority for one sandbox, in memory, so that the proxy can read https.

SECURITY: only this guest trusts it. Its key never leaves this process: the guest gets the
certificate only, and no file is written.
"""

from __future__ import annotations

import datetime as dt
import os
import ssl
from ipaddress import ip_address
from typing import TYPE_CHECKING

from atoll.errors import ConfigError
from atoll.extras import hint

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

VALID_DAYS = 365
MAX_HOSTS = 256


class Authority:
    """Signs certificates for the hosts that a guest talks to."""

    def __init__(self) -> None:
        try:
            from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - an extra
        except ImportError:
            raise ConfigError(f"inspect_tls needs the extra `network`. {hint('network')}") from None
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = _sign("Atoll sandbox authority", self._key, self._key, None)
        self._contexts: dict[str, ssl.SSLContext] = {}

    @property
    def pem(self) -> str:
        """The certificate that the guest trusts."""
        return _pem(self._certificate).decode()

    def context(self, host: str) -> ssl.SSLContext:
        """Return the TLS context to act as `host` for the guest; it refuses other server names."""
        if host not in self._contexts:
            if len(self._contexts) >= MAX_HOSTS:
                self._contexts.clear()
            self._contexts[host] = self._make_context(host)
        return self._contexts[host]

    def _make_context(self, host: str) -> ssl.SSLContext:
        leaf = _sign(host, self._leaf_key, self._key, self._certificate)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["http/1.1"])
        _load(context, _pem(leaf) + _pem(self._certificate) + _key_pem(self._leaf_key))

        def check(_tls: object, name: str | None, _context: object) -> int | None:
            same = same_name(name, host)
            return None if same else ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

        context.sni_callback = check  # called with None as well
        return context


def same_name(name: str | None, host: str) -> bool:
    """Return whether the server name in a ClientHello is the host of the CONNECT request.

    For an address, a client sends no server name.
    """
    if name is None:
        return _is_address(host)
    return name.lower().rstrip(".") == host


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _sign(
    name: str,
    key: EllipticCurvePrivateKey,
    signer: EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
) -> x509.Certificate:
    """Return a certificate; without an issuer, that of the authority itself."""
    from cryptography import x509  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
    from cryptography.x509.oid import NameOID  # noqa: PLC0415

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    now = dt.datetime.now(dt.UTC)
    own = x509.SubjectKeyIdentifier.from_public_key(signer.public_key())
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=VALID_DAYS))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(_usage(authority=issuer is None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own), critical=False
        )
    )
    if issuer is not None:
        host = x509.IPAddress(ip_address(name)) if _is_address(name) else x509.DNSName(name)
        builder = builder.add_extension(x509.SubjectAlternativeName([host]), critical=False)
    return builder.sign(signer, hashes.SHA256())


def _usage(*, authority: bool) -> x509.KeyUsage:
    from cryptography import x509  # noqa: PLC0415 - an extra

    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415 - an extra

    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization as forms  # noqa: PLC0415 - an extra

    return key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """Load a certificate from a memory file, because `ssl` reads certificates from files only."""
    fd = os.memfd_create("atoll-certificate", os.MFD_CLOEXEC)
    try:
        os.write(fd, pem)
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
