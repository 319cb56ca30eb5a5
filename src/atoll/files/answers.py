"""Validates the answers of a guest, or of a remote shell, before the host uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.errors import SandboxError
from atoll.files.types import FileError

if TYPE_CHECKING:
    from collections.abc import Callable


def checked(operation: str, answer: object) -> dict[str, Any]:
    """Return the answer if guest/shared/workspace can have given it, else raise SandboxError."""
    try:
        return _SHAPES[operation](_of(dict, answer))
    except (LookupError, TypeError, ValueError, OverflowError) as exc:
        text = f"the answer to {operation} cannot be read: {str(exc)[:200]}"
        raise SandboxError(text) from None


def _entries(answer: dict[str, Any]) -> dict[str, Any]:
    rows = [
        [_of(str, path), _of(bool, is_dir), _of(int, size), float(modified)]
        for path, is_dir, size, modified in answer["entries"]
    ]
    return {"entries": rows, "truncated": bool(answer.get("truncated"))}


def _matches(answer: dict[str, Any]) -> dict[str, Any]:
    rows = [
        [_of(str, path), _of(int, line), _of(str, text)] for path, line, text in answer["matches"]
    ]
    return {"matches": rows, "truncated": bool(answer["truncated"])}


def _text(answer: dict[str, Any]) -> dict[str, Any]:
    return {"text": _of(str, answer["text"]), **_code(answer)}


def _lines(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        return {**_coded(answer), "reason": _of(str, answer["reason"])}
    content = [_of(str, line) for line in answer["content"]]
    times = {name: float(answer[name]) for name in ("created", "modified")}
    return {"content": content, **times}


def _outcome(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        return {"error": _of(str, answer["error"]), **_code(answer)}
    more = {"occurrences": _of(int, answer["occurrences"])} if "occurrences" in answer else {}
    return {"path": _of(str, answer["path"]), **more}


def _code(answer: dict[str, Any]) -> dict[str, Any]:
    return {"code": FileError(answer["code"])} if "code" in answer else {}


def _coded(answer: dict[str, Any]) -> dict[str, Any]:
    return {"error": FileError(answer["error"])} if "error" in answer else {}


def _data(answer: dict[str, Any]) -> dict[str, Any]:
    return _coded(answer) or {"data": _of(bytes, answer["data"])}


def _done(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        return {**_coded(answer), "reason": _of(str, answer["reason"])[:1000]}
    return {}


def _found(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        return _done(answer)
    return {"entry": _entries({"entries": [answer["entry"]]})["entries"][0]}


_SHAPES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "ls": _entries,
    "glob": _entries,
    "grep": _matches,
    "read": _text,
    "read_raw": _lines,
    "write": _outcome,
    "edit": _outcome,
    "upload": _coded,
    "download": _data,
    "stat": _found,
    "delete": _done,
    "move": _done,
    "mkdir": _done,
}


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{type(value).__name__} instead of {kind.__name__}")
    return value
