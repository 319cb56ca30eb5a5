"""What one service may use, and what one request may ask of it."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from atoll.config import DURABILITIES, expand_home
from atoll.errors import ConfigError
from atoll.network import HostRule
from atoll.policy import check_positive
from atoll.service.http.proxies import parse_network
from atoll.service.telemetry.logs import FORMATS

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_PORT = 8437
MAX_PORTS = 65535
_PREFIX = "ATOLL_SERVE_"
_PORTS = ("port", "preview_port")


def default_folder() -> Path:
    """Return the folder of keys, states and contexts: ATOLL_SERVE_FOLDER, or below the home."""
    return expand_home(os.environ.get(f"{_PREFIX}FOLDER") or "~/.local/share/atoll").absolute()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Limits of one service; each number is positive."""

    folder: Path
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    preview_port: int | None = None
    """The port of the listener that shows servers in sessions to browsers; unset: none."""
    preview_domain: str = "localhost"
    """The domain of their host names, which are PORT-SESSION.DOMAIN; https://DOMAIN if a reverse
    proxy serves it."""
    hosts: tuple[str, ...] = ()
    """Names, besides localhost and the address, that the Host header may have."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of reverse proxies whose X-Forwarded-For is believed."""
    tls_certificate: str = ""
    """A PEM file: the certificate and its chain; unset: plain HTTP."""
    tls_key: str = ""
    """A PEM file of the certificate's key; unset: it is in the certificate's file."""
    log: str = "text"
    """The form of log lines on stderr: `text`, or `json`, with a line for each request."""
    traces: str = ""
    """The URL of an OpenTelemetry collector that spans are sent to (OTLP, HTTP); unset: none."""
    tier: str | None = None
    """Libraries that a session has when it names none; unset: the largest tier."""
    session_packages: tuple[str, ...] = ()
    """Packages that sessions may name: `polars`, `duckdb==1.5`, `@NAME`, or `*` for all."""
    session_images: tuple[str, ...] = ()
    """Images that sessions may name: references, NAME=REFERENCE, or a beginning with `*`."""
    commit_images: tuple[str, ...] = ()
    """Names under which sessions may be committed as images: a name, or a beginning with `*`."""
    language_images: tuple[str, ...] = ()
    """Images that programs of a language run in, as LANGUAGE=REFERENCE; unset: as on this host."""
    session_hosts: tuple[str, ...] = ()
    """Hosts that sessions may reach, as a NetworkPolicy names them."""
    models: tuple[str, ...] = ()
    """Names of models that agents may use; their keys are in the service's environment."""
    blobs: str = ""
    """Where states, contexts and files are kept: `s3://bucket/prefix`; unset: in the folder."""
    redis: str = ""
    """The URL of a Redis that several services share quotas and sessions by; unset: none."""
    own_url: str = ""
    """The address at which the other services that share a Redis reach this one."""
    fleet: str = ""
    """HOST:PORT of the head of a fleet that the sandboxes are on; unset: on this machine."""
    durability: str = "cell"
    """What sessions on a fleet keep: `none`, `periodic` or `cell`, as SandboxConfig has it."""
    librechat_key: str = ""
    """The id of the key that LibreChat acts by if it sends none; unset: it has to send one."""
    librechat_networks: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    """The networks from which LibreChat may come without a key."""
    jwt_keys: str = ""
    """A JWKS file, or a folder of PEM files named by key id, to check LibreChat's tokens with."""
    jwt_issuer: str = "librechat"
    jwt_audience: str = "codeapi"
    file_seconds: float = 86_400
    """How long LibreChat's files are kept."""
    max_body_bytes: int = 40 << 20
    max_upload_bytes: int = 150 << 20
    max_context_bytes: int = 1 << 30
    memory_bytes: int = 1 << 30
    """What requests of all tenants may make the process hold: bodies, outputs, results."""
    tenant_memory_bytes: int = 256 << 20
    """What requests of one tenant may make it hold."""
    spool_bytes: int = 8 << 30
    """What uploads that are on their way may take on disk, of all tenants."""
    tenant_spool_bytes: int = 2 << 30
    max_output_bytes: int = 8 << 20
    """What a request may ask for of stdout, and of stderr."""
    body_seconds: float = 30
    """How long a JSON body may take to arrive; a file may take ten times as long."""
    body_bytes_per_second: int = 4 << 10
    """What a client has to send of a file, on average over each `body_seconds`."""
    header_seconds: float = 10
    stall_seconds: float = 120
    """How long a client may read nothing of its answer."""
    max_connections: int = 2048
    max_running: int = max(4, 2 * (os.cpu_count() or 1))
    """Executions at one time; those that wait for their client's tools do not count."""
    max_queue: int = 256
    max_sessions: int = 1024
    max_live: int = 128
    """Sessions in memory; past it the one idle for longest is saved to disk, if it can be."""
    idle_seconds: float = 1800
    max_seconds: float = 86_400
    state_seconds: float = 7 * 86_400
    context_seconds: float = 86_400
    drain_seconds: float = 30
    keepalive_seconds: float = 5
    event_bytes: int = 4 << 20
    """Events of one execution that are kept for a reader that is slow or comes back."""
    kept_seconds: float = 600
    """How long a finished execution can be asked for."""
    kept_bytes: int = 256 << 20
    """What finished executions may take in memory."""
    idempotency_seconds: float = 86_400

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not (field.name in _PORTS and value == 0):
                check_positive(field.name, value)
        if self.durability not in DURABILITIES:
            known = ", ".join(DURABILITIES)
            raise ConfigError(f"durability must be one of {known}, not {self.durability!r:.60}")
        if self.log not in FORMATS:
            raise ConfigError(f"log must be one of {', '.join(FORMATS)}, not {self.log!r:.60}")
        for host in self.session_hosts:
            HostRule.parse(host)
        for name in ("trusted_proxies", "librechat_networks"):
            for network in getattr(self, name):
                parse_network(name, network)
        _check_language_images(self.language_images)
        if self.tls_key and not self.tls_certificate:
            raise ConfigError("a TLS key needs its certificate: name both")
        _check_ports(port=self.port, preview_port=self.preview_port or 0)

    @classmethod
    def from_environment(cls, **given: Any) -> ServiceSettings:
        """Return the settings of ATOLL_SERVE_*, overridden by the given values."""
        known: dict[str, Any] = {"folder": default_folder()}
        for field in fields(cls):
            text = os.environ.get(variable(field.name), "").strip()
            if text and field.name != "folder":
                known[field.name] = _parse(field.name, str(field.type), text)
        return cls(
            **{**known, **{name: value for name, value in given.items() if value is not None}}
        )


def _check_ports(**ports: int) -> None:
    for name, port in ports.items():
        if port > MAX_PORTS:
            raise ConfigError(f"{name} must be at most {MAX_PORTS}, not {port}")


def variable(name: str) -> str:
    """Return the environment variable that a setting is read from."""
    return _PREFIX + name.upper()


def _check_language_images(entries: tuple[str, ...]) -> None:
    for entry in entries:
        if not all(entry.partition("=")[::2]):
            raise ConfigError(f"language_images has LANGUAGE=REFERENCE, not {entry!r:.100}")


def _parse(name: str, kind: str, text: str) -> Any:
    if kind.startswith("tuple"):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        return {"int": int, "float": float}.get(kind.removesuffix(" | None"), str)(text)
    except ValueError:
        raise ConfigError(f"{variable(name)} must be a number, not {text!r}") from None
