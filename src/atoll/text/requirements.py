"""Requirements by name, such as `duckdb==1.5`: checked, and written in one way.

SECURITY: pip reads options, files and URLs where it expects a requirement. What passes here is a
name with extras, versions and a marker, or `@NAME` for an environment; nothing else reaches pip.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from atoll.errors import ConfigError

MOST = 200
MAX_CHARACTERS = 300
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_ENVIRONMENT = re.compile(r"@([a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?)\Z")
_VERSION = r"\s*(?:===|==|~=|!=|<=|>=|<|>)\s*[A-Za-z0-9._*+!-]+\s*"
_REQUIREMENT = re.compile(
    rf"\s*(?P<name>{_NAME})\s*"
    rf"(?:\[\s*(?P<extras>{_NAME}(?:\s*,\s*{_NAME})*)\s*\]\s*)?"
    rf"(?P<versions>\(?{_VERSION}(?:,{_VERSION})*\)?)?"
    r"(?:;(?P<marker>[A-Za-z0-9_ .,<>=!~()'\"+*-]+))?\s*\Z"
)


def normalise(given: Any) -> tuple[str, ...]:
    """Return requirements sorted and spelled in one way; ConfigError names a wrong one."""
    if isinstance(given, str) or not hasattr(given, "__iter__"):
        raise ConfigError(f'packages must be a list such as ["polars"], not {given!r:.100}')
    result = {_normalise_one(item) for item in given}
    if len(result) > MOST:
        raise ConfigError(f"packages names {len(result)} packages: {MOST} is the most")
    return tuple(sorted(result))


def name_of(requirement: str) -> str:
    """Return the package's name as indexes spell it: lower case, with single hyphens."""
    match = re.match(_NAME, requirement.strip())
    return canonical(match[0]) if match else requirement


def canonical(name: str) -> str:
    """Return a name as indexes spell it: `Typing_Extensions` is `typing-extensions`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def environment_name(requirement: str) -> str | None:
    """Return NAME of `@NAME`; None for the requirement of a package."""
    match = _ENVIRONMENT.match(requirement)
    return match[1] if match else None


def check_environment_name(name: str) -> str:
    """Return the name of an environment; ConfigError if it cannot be one."""
    if not _ENVIRONMENT.match(f"@{name}"):
        raise ConfigError(
            f"{name!r} cannot name an environment: use lower-case letters, digits, `-`, `_`, `.`"
        )
    return name


def _normalise_one(given: object) -> str:
    if not isinstance(given, str):
        raise ConfigError(f"a package is named by a str, not {given!r:.100}")
    return _spelled(given)


@functools.lru_cache(maxsize=256)
def _spelled(given: str) -> str:
    if environment_name(given):
        return given
    match = _REQUIREMENT.match(given) if len(given) <= MAX_CHARACTERS else None
    if match is None:
        raise ConfigError(f"{given!r:.120} is not a package by name: {_why(given)}")
    extras = sorted(canonical(part.strip()) for part in (match["extras"] or "").split(",") if part)
    versions = sorted(re.sub(r"[\s()]", "", match["versions"] or "").split(","))
    marker = " ".join((match["marker"] or "").split())
    return (
        canonical(match["name"])
        + (f"[{','.join(extras)}]" if extras else "")
        + ",".join(versions)
        + (f"; {marker}" if marker else "")
    )


def _why(given: str) -> str:
    if given.lstrip().startswith("-"):
        return "options of pip are not taken; set PIP_INDEX_URL and the like in the environment"
    if "://" in given or "@" in given:
        return "URLs are not taken; put the wheel into a folder and name that in PIP_FIND_LINKS"
    if "/" in given or given.lstrip().startswith("."):
        return "paths are not taken; put the wheel into a folder and name that in PIP_FIND_LINKS"
    return "write it as polars, duckdb==1.5 or pandas[excel]>=2,<3"
