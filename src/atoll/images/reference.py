"""References: which image is meant, and where it comes from."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from atoll.config import LOCAL_IMAGES
from atoll.errors import ConfigError

DEFAULT_HOST, DEFAULT_FOLDER, DEFAULT_TAG = "docker.io", "library", "latest"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_NAME = re.compile(rf"{_PART}(?:/{_PART})*\Z")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")
_HOST = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::\d{1,5})?\Z"
)
_MOST_LENGTH = 4096
_EXAMPLES = (
    "write it as python:3.12-slim, HOST:PORT/team/env:tag, NAME@sha256:DIGEST, oci:FOLDER, "
    "oci-archive:FILE or docker-archive:FILE"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryReference:
    """An image in a registry, or in the store under this name."""

    host: str
    name: str
    tag: str
    """Empty if only a digest is given."""
    digest: str = ""

    def __str__(self) -> str:
        """Return it with everything that may be left out."""
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.host}/{self.name}{tag}" + (f"@{self.digest}" if self.digest else "")

    @property
    def wanted(self) -> str:
        """What to ask a registry for."""
        return self.digest or self.tag


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalReference:
    """An image in a folder or an archive on this machine."""

    kind: str
    path: str
    tag: str = ""

    def __str__(self) -> str:
        """Return it as it is written."""
        return f"{self.kind}:{self.path}" + (f":{self.tag}" if self.tag else "")


Reference = RegistryReference | LocalReference


def parse(text: str) -> Reference:
    """Return what a reference means; ConfigError if it is malformed."""
    if not text or len(text) > _MOST_LENGTH or not text.isprintable():
        raise ConfigError(f"{text[:100]!r} is not an image: {_EXAMPLES}")
    kind, colon, rest = text.partition(":")
    if colon and kind in LOCAL_IMAGES:
        return _local(kind, rest)
    return _registry(text)


def _local(kind: str, rest: str) -> LocalReference:
    path, tag = rest, ""
    if not os.path.exists(rest):
        before, colon, after = rest.rpartition(":")
        if colon and "/" not in after and os.path.exists(before):
            path, tag = before, after
    if not path:
        raise ConfigError(f"{kind}: needs a path, such as {kind}:./image")
    return LocalReference(kind=kind, path=os.path.abspath(os.path.expanduser(path)), tag=tag)


def _registry(text: str) -> RegistryReference:
    rest, at, digest = text.partition("@")
    if at and not DIGEST.match(digest):
        raise ConfigError(f"{text!r}: a digest is sha256: and 64 hexadecimal digits")
    host, slash, name = rest.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        host, name = DEFAULT_HOST, rest
    if host in ("index.docker.io", "registry-1.docker.io"):
        host = DEFAULT_HOST
    name, colon, tag = name.partition(":")
    if not _HOST.match(host) or not _NAME.match(name) or (colon and not _TAG.match(tag)):
        raise ConfigError(f"{text!r} is not an image: {_EXAMPLES}")
    if host == DEFAULT_HOST and "/" not in name:
        name = f"{DEFAULT_FOLDER}/{name}"
    tag = tag or ("" if digest else DEFAULT_TAG)
    return RegistryReference(host=host, name=name, tag=tag, digest=digest)
