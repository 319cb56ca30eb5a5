"""Shared parts of the integrations: open a sandbox, report a missing package, convert values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.concurrency.portal import Portal
from atoll.errors import ConfigError, UnsupportedError, VariableError
from atoll.extras import hint
from atoll.factory import merge, open_sandbox
from atoll.guest.shared.values import Opaque
from atoll.sandbox.blocking import SyncSandbox

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.factory import SandboxOptions
    from atoll.policy import Capability


LARGE = 1 << 20
"""Least characters of a text that is sent as a file, not in a message."""
FOLDER = "/tmp/.atoll-sent"  # noqa: S108 - the guest's own


def missing(extra: str, module: str) -> str:
    """Return the message of an ImportError: which package is missing, and what to type."""
    return f"atoll.integrations.{module} needs {extra}. {hint(extra)}"


def open_box(
    options: SandboxOptions | Mapping[str, Any], needed: frozenset[Capability] = frozenset()
) -> SyncSandbox:
    """Open a sandbox that has what an integration needs.

    `auto` chooses a backend that is at least jailed; a weaker one has to be asked for by name.
    """
    return SyncSandbox(Portal.shared().run(open_sandbox(merge(None, dict(options)), needed)))


def take_box(
    box: SyncSandbox | None, options: Mapping[str, Any], needed: frozenset[Capability]
) -> SyncSandbox:
    """Return the caller's sandbox, checked, or open one."""
    if box is None:
        return open_box(options, needed)
    if options:
        raise ConfigError(
            f"leave out {min(options)}: it is for a new sandbox, and `box` is one already"
        )
    for lacking in sorted(needed - box.capabilities):
        raise UnsupportedError(box.backend, lacking)
    return box


def upload_text(box: SyncSandbox, name: str, text: str, *, is_json: bool = False) -> str:
    """Upload a large text; return a guest expression that reads it and deletes the file."""
    path = f"{FOLDER}/{name}"
    (sent,) = box.files.upload([(path, text.encode("utf-8", "surrogatepass"))])
    if sent.error is not None:
        raise VariableError(name, f"{len(text):,} characters cannot be sent: {sent.error}", "set")
    reading = f"open({path!r}, encoding='utf-8', errors='surrogatepass', newline='').read()"
    value = f"__import__('json').loads({reading})" if is_json else reading
    return f"({value}, __import__('os').unlink({path!r}))[0]"


def as_json(value: Any) -> Any:
    """Return a guest's value as JSON data: tuples and sets as lists, other objects as text."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Opaque):
        return value.repr
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((as_json(item) for item in value), key=repr)
    return str(value)
