"""Encodes errors for the socket, and raises them there as the same class with their attributes."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

from atoll import errors
from atoll.guest.shared import rpc, values

if TYPE_CHECKING:
    import logging

MAX_TEXT = 10_000
MAX_FIELDS = 1 << 20


def to_wire(ident: str, fault: BaseException) -> bytes:
    """Return the error response to the request `ident`, as a line."""
    known = isinstance(fault, errors.AtollError)
    data = {
        "class": _public_class(fault).__name__,
        "retryable": isinstance(fault, errors.AtollError) and fault.retryable,
        "fields": _encoded(vars(fault)) if known else {},
    }
    text = str(fault) if known else f"{type(fault).__name__}: {fault}"
    error = {"code": rpc.HOST_CALL_FAILED, "message": text[:MAX_TEXT], "data": data}
    return rpc.encode({"jsonrpc": "2.0", "id": ident, "error": error})


def _public_class(fault: BaseException) -> type[BaseException]:
    """Return the class of `atoll.errors` that the other side knows this error by."""
    kinds = (kind for kind in type(fault).__mro__ if getattr(errors, kind.__name__, None) is kind)
    return next(kinds, errors.SandboxError)


def unexpected(log: logging.Logger, who: str, method: str, fault: Exception) -> errors.SandboxError:
    """Log where a request failed by a bug of ours; return the error that its client gets.

    SECURITY: neither has the fault's text, which may be a guest's or another client's.
    """
    where = "".join(traceback.format_tb(fault.__traceback__))
    log.error("%s failed: %s\n%s", method, type(fault).__name__, where)
    return errors.SandboxError(f"{who} failed: {type(fault).__name__}")


def _encoded(fields: dict[str, Any]) -> Any:
    """Return an error's attributes; none if they cannot be sent: the error itself always can."""
    try:
        return values.encode(fields, max_bytes=MAX_FIELDS)
    except (ValueError, RecursionError):
        return {}


def from_wire(error: dict[str, Any]) -> errors.AtollError:
    """Return the error that the other side raised; SandboxError if its class is unknown here."""
    data = error.get("data")
    data = data if isinstance(data, dict) else {}
    kind = getattr(errors, str(data.get("class")), None)
    if not isinstance(kind, type) or not issubclass(kind, errors.AtollError):
        kind = errors.SandboxError
    fault: errors.AtollError = kind.__new__(kind)
    fault.args = (error["message"],)
    vars(fault).update(_fields(data))
    return fault


def _fields(data: dict[str, Any]) -> dict[str, Any]:
    try:
        fields = values.decode(data.get("fields", {}))
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}
