"""Packages and hosts that a client asks for, within what the operator allows.

SECURITY: by default nothing is allowed. A client chooses among the operator's packages and hosts;
it can neither name others nor raise the limits of a NetworkPolicy.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from atoll.config import LOCAL_IMAGES
from atoll.network import HostRule, NetworkPolicy
from atoll.service.http.problems import Problem
from atoll.text.requirements import environment_name, name_of, normalise

if TYPE_CHECKING:
    from atoll.service.http.bodies import Network, Sandbox
    from atoll.service.settings import ServiceSettings

ANY = "*"
_LIMITS = ("max_bytes", "max_requests", "max_seconds", "max_connections")


def wanted(given: Sandbox, settings: ServiceSettings) -> dict[str, Any]:
    """Return packages, image and network of a sandbox; 403 if the operator does not allow them."""
    result: dict[str, Any] = {}
    if given.allow_source:
        raise Problem(403, "not_allowed", "this service builds no packages: leave allow_source out")
    if given.packages:
        result["packages"] = _packages(given.packages, settings.session_packages)
    if given.image is not None:
        result["image"] = image(given.image, settings.session_images)
    if given.network:
        result["network"] = _network(given.network, settings.session_hosts)
    return result


def _packages(asked: list[str], allowed: tuple[str, ...]) -> tuple[str, ...]:
    names = {name_of(package) for package in allowed if package == name_of(package)}
    for package in normalise(asked):
        named = package in allowed or name_of(package) in names
        if not named and (ANY not in allowed or environment_name(package) is not None):
            raise _refusal("package", package, allowed)
    return normalise(asked)


def image(asked: str, allowed: tuple[str, ...]) -> str:
    """Return the reference of an image that the operator allows; 403 for any other.

    An entry is a reference, NAME=REFERENCE, or a beginning with `*`, which fits registries only: a
    client must not name files of this machine.
    """
    names = dict(entry.split("=", 1) for entry in allowed if "=" in entry)
    if asked in names:
        return names[asked]
    local = asked.partition(":")[0] in LOCAL_IMAGES or asked.startswith(("/", "."))
    begins = tuple(entry[:-1] for entry in allowed if entry.endswith(ANY))
    if asked in allowed or (begins and not local and asked.startswith(begins)):
        return asked
    raise _refusal("image", asked, tuple(entry.partition("=")[0] for entry in allowed))


def check_commit(asked: str, allowed: tuple[str, ...], *, push: bool) -> None:
    """Raise Problem 403 if the operator does not allow to commit a session under this name.

    A client must not choose the registry that the service speaks to, so an image is pushed only if
    the entry that allows it names the registry in full.
    """
    local = asked.partition(":")[0] in LOCAL_IMAGES or asked.startswith(("/", "."))
    fitting = [
        entry
        for entry in allowed
        if asked == entry or (entry.endswith(ANY) and not local and asked.startswith(entry[:-1]))
    ]
    if not fitting:
        raise _refusal("image", asked, allowed, option="commit-image")
    if push and not any("/" in entry for entry in fitting):
        text = "this service pushes only to registries that --commit-image names: 'HOST/team/*'"
        raise Problem(403, "not_allowed", text)


def _network(asked: list[str] | Network, allowed: tuple[str, ...]) -> NetworkPolicy:
    fields: dict[str, Any] = {"allow": asked}
    if not isinstance(asked, list):
        fields = msgspec.structs.asdict(asked)
    policy = NetworkPolicy(**{name: value for name, value in fields.items() if value is not UNSET})
    rules = [HostRule.parse(host) for host in allowed]
    for host in policy.allow:
        if not any(rule.contains(HostRule.parse(host)) for rule in rules):
            raise _refusal("host", host, allowed)
    usual = NetworkPolicy(policy.allow)
    for name in _LIMITS:
        value, most = getattr(policy, name), getattr(usual, name)
        if value is None or value > most:
            raise Problem(403, "quota", f"network.{name} may be at most {most:,}")
    return policy


def _refusal(what: str, asked: str, allowed: tuple[str, ...], option: str = "") -> Problem:
    asked = asked[:200]
    known = f"only the {what}s {', '.join(allowed[:20])}" if allowed else f"no {what}s"
    option = option or f"session-{what}"
    how = f"its operator can allow it: atoll serve --{option} {shlex.quote(asked)}"
    text = f"this service allows {known} (asked for {asked}); {how}"
    return Problem(403, "not_allowed", text)
