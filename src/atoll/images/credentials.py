"""Credentials for registries, where docker and podman keep theirs: files and credential helpers.

SECURITY: a secret is read when a registry asks for it, sent to that registry or to the token server
that it names, and never logged or stored.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.errors import ImageError
from atoll.images.reference import DEFAULT_HOST

if TYPE_CHECKING:
    from atoll.guest.shared.messages import Json

HELPER_SECONDS = 30
MOST_FILE = 1 << 20
_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\Z")
_DOCKER_HUB = ("https://index.docker.io/v1/", "index.docker.io", DEFAULT_HOST)
TOKEN_USER = "<token>"  # noqa: S105 - not a secret
"""The user name of a helper whose secret is a refresh token."""


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """What a user has for a registry: a name and a password, or a refresh token."""

    user: str
    secret: str
    is_token: bool = False

    @property
    def basic(self) -> str:
        """The header of basic authentication."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.secret}".encode()).decode()


def find(host: str, name: str) -> Credentials | None:
    """Return the credentials for a repository of a registry; None if the user has none."""
    for path in _files():
        facts = _read(path)
        if facts is not None and (credentials := _in_file(facts, host, name)) is not None:
            return credentials
    return None


def _files() -> list[Path]:
    named = os.environ.get("REGISTRY_AUTH_FILE")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    docker = os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker")
    return [
        *([Path(named)] if named else []),
        Path(docker) / "config.json",
        *([Path(runtime) / "containers" / "auth.json"] if runtime else []),
        Path(config) / "containers" / "auth.json",
    ]


def _read(path: Path) -> Json | None:
    try:
        with path.open("rb") as file:
            facts = json.loads(file.read(MOST_FILE))
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) else None


def _in_file(facts: Json, host: str, name: str) -> Credentials | None:
    keys = _DOCKER_HUB if host == DEFAULT_HOST else (host, f"https://{host}", f"https://{host}/")
    helpers = facts.get("credHelpers")
    helper = next((helpers[key] for key in keys if key in helpers), None) if helpers else None
    if helper is not None:
        return _ask(str(helper), keys[0])
    if facts.get("credsStore") and (given := _ask(str(facts["credsStore"]), keys[0])) is not None:
        return given
    entries = facts.get("auths")
    if not isinstance(entries, dict):
        return None
    parts = name.split("/")
    narrower = [f"{host}/{'/'.join(parts[:count])}" for count in range(len(parts), 0, -1)]
    for key in (*narrower, *keys):
        if isinstance(entry := entries.get(key), dict) and (given := _of_entry(entry)) is not None:
            return given
    return None


def _of_entry(entry: Json) -> Credentials | None:
    if token := entry.get("identitytoken"):
        return Credentials(TOKEN_USER, str(token), is_token=True)
    if packed := entry.get("auth"):
        try:
            user, _, secret = base64.b64decode(str(packed)).decode().partition(":")
        except ValueError:
            return None
        return Credentials(user, secret.rstrip("\0"))
    if entry.get("username") and entry.get("password"):
        return Credentials(str(entry["username"]), str(entry["password"]))
    return None


def _ask(helper: str, host: str) -> Credentials | None:
    """Ask a credential helper, a program of the user's; None if it has none for the host."""
    if not _HELPER.match(helper):
        raise ImageError("", f"{helper[:60]!r} is not the name of a credential helper")
    program = f"docker-credential-{helper}"
    try:
        said = subprocess.run(
            [program, "get"],
            input=host,
            capture_output=True,
            text=True,
            timeout=HELPER_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        hint = "Install it, or take it out of ~/.docker/config.json."
        raise ImageError("", f"the credential helper {program} is not installed", hint) from None
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise ImageError("", f"the credential helper {program} failed: {exc}") from None
    if said.returncode != 0:
        return None
    try:
        facts = json.loads(said.stdout)
        user, secret = str(facts["Username"]), str(facts["Secret"])
    except (ValueError, KeyError, TypeError):
        raise ImageError("", f"the credential helper {program} gave no JSON answer") from None
    return Credentials(user, secret, is_token=user == TOKEN_USER)
