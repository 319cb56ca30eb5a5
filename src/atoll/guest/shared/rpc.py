"""JSON-RPC 2.0, one message a line: the codec of both ends of a sandbox's private channel.

SECURITY: the peer is hostile. A line is capped in size before it is kept, in depth before it is
parsed, and its shape is checked before it is returned.

The C halves of the json module are used as they are: guest code that patches json does not reach
them, and a guest starts without the half dozen modules that json imports.
"""

from __future__ import annotations

from _json import encode_basestring_ascii, make_encoder, make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Message = dict[str, Any]

MAX_MESSAGE_BYTES = 32 << 20
MAX_DEPTH = 256
MAX_ITEMS = 500_000

PARSE_ERROR = -32700
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
HOST_CALL_FAILED = -32000
TOO_LARGE = -32001


MAX_KEYS = 250_000
MAX_NUMBER = 64
"""Digits in a row in a number: `values` sends larger ones as text, and to convert long ones takes
time quadratic in their length."""
LARGE = 1 << 16
_DIGITS_AS_0 = bytes(48 if 48 <= byte <= 57 else byte for byte in range(256))
_LONG_NUMBER = b"0" * (MAX_NUMBER + 1)
_ALL_BUT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_OPEN_AS_ONE = bytes(byte in b"[{" for byte in range(256))


class ProtocolError(Exception):
    """The peer sent something that is not a message of this protocol."""


class MessageTooLargeError(ValueError):
    """A message of our own is over the cap, so it was not sent."""


def _refuse_constant(name: str) -> None:
    raise ProtocolError("not JSON: {}".format(name))


def _refuse_object(value: Any) -> None:
    raise TypeError("{} is not a JSON value".format(type(value).__name__))


def _finite(text: str) -> float:
    """Return the number; refuse a number beyond floats, which would become infinite."""
    number = float(text)
    if number - number != 0:
        raise ProtocolError("not JSON: a number over all limits")
    return number


class _ScannerSettings:
    strict = True
    object_hook = object_pairs_hook = array_hook = None
    parse_float = staticmethod(_finite)
    parse_int = int
    parse_constant = staticmethod(_refuse_constant)


# It raises SystemError instead of JSONDecodeError while nobody has imported json.decoder.
_scan = make_scanner(_ScannerSettings)  # type: ignore[arg-type]
_chunks = make_encoder(
    None, _refuse_object, encode_basestring_ascii, None, ":", ",", False, False, False
)


def request(ident: str, method: str, params: Message) -> bytes:
    """Encode a call that expects an answer."""
    return encode({"jsonrpc": "2.0", "id": ident, "method": method, "params": params})


def notification(method: str, params: Message) -> bytes:
    """Encode a message that expects no answer."""
    return encode({"jsonrpc": "2.0", "method": method, "params": params})


def result(ident: str, value: Any) -> bytes:
    """Encode the answer to the request `ident`."""
    return encode({"jsonrpc": "2.0", "id": ident, "result": value})


def error(ident: str, code: int, message: str, data: Message | None = None) -> bytes:
    """Return the refusal of the request `ident` as a line."""
    fault: Message = {"code": code, "message": message}
    if data is not None:
        fault["data"] = data
    return encode({"jsonrpc": "2.0", "id": ident, "error": fault})


def encode(message: Message) -> bytes:
    """Encode a message as one line of ASCII."""
    line = "".join(_chunks(message, 0)).encode("ascii")
    if len(line) > MAX_MESSAGE_BYTES:
        raise MessageTooLargeError(
            "the message has {:,} bytes; the limit is {:,}".format(len(line), MAX_MESSAGE_BYTES)
        )
    try:
        check_structure(line)
    except ProtocolError as exc:
        raise MessageTooLargeError(str(exc)) from None
    return line + b"\n"


def decode(line: bytes) -> Message:
    """Decode and check the message in a line; ProtocolError if it is not one."""
    check_structure(line)
    try:
        text = line.decode("ascii")
        message, end = _scan(text, 0)
    except (ValueError, RecursionError, StopIteration, SystemError) as exc:
        raise ProtocolError("not JSON: {}".format(str(exc)[:200])) from None
    if text[end:].strip():
        raise ProtocolError("more than one value in a line")
    _check_shape(message)
    return message  # type: ignore[no-any-return]


def check_structure(line: bytes) -> None:
    """Reject excess depth or size in linear time, before parsing."""
    if len(line) > LARGE:
        _check_large(line)
    if line.count(b"[") + line.count(b"{") <= MAX_DEPTH and line.count(b",") <= MAX_ITEMS:
        return
    outside = _outside_strings(line)
    commas = sum([part.count(b",") for part in outside])
    brackets = b""
    if commas <= MAX_ITEMS:
        brackets = b"".join([part.translate(_OPEN_AS_ONE, _ALL_BUT_BRACKETS) for part in outside])
    if len(brackets) // 2 + commas > MAX_ITEMS:
        raise ProtocolError("more than {:,} values".format(MAX_ITEMS))
    depth = 0
    for bracket in brackets:
        depth += 1 if bracket else -1
        if depth > MAX_DEPTH:
            raise ProtocolError("nested deeper than {}".format(MAX_DEPTH))


def _check_large(line: bytes) -> None:
    """Refuse what takes the parser very long, which holds the interpreter's lock meanwhile."""
    numbers = _LONG_NUMBER in line.translate(_DIGITS_AS_0)
    if not numbers and line.count(b":") <= MAX_KEYS:
        return
    outside = _outside_strings(line)
    if sum([part.count(b":") for part in outside]) > MAX_KEYS:
        raise ProtocolError("more than {:,} keys".format(MAX_KEYS))
    if numbers and any(_LONG_NUMBER in part.translate(_DIGITS_AS_0) for part in outside):
        raise ProtocolError("a number of more than {} digits".format(MAX_NUMBER))


def _outside_strings(line: bytes) -> list[bytes]:
    """Return the parts of a line outside quotes; a regular expression would take seconds.

    They are not joined: the line itself may be the most that the host should hold.
    """
    bare = line.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in line else line
    if bare.count(b'"') > 2 * MAX_ITEMS:
        raise ProtocolError("more than {:,} strings".format(MAX_ITEMS))
    return bare.split(b'"')[::2]


def _check_shape(message: Any) -> None:
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise ProtocolError("not a JSON-RPC 2.0 message")
    ident = message.get("id")
    if "method" in message:
        good = isinstance(message["method"], str) and isinstance(message.get("params", {}), dict)
        good = good and (ident is None or isinstance(ident, str))
    elif "error" in message:
        fault = message["error"]
        good = isinstance(ident, str) and "result" not in message and isinstance(fault, dict)
        good = good and isinstance(fault.get("message"), str)
    else:
        good = isinstance(ident, str) and "result" in message
    if not good:
        raise ProtocolError("a JSON-RPC message of no known shape")


class LineBuffer:
    """Cuts a stream of bytes into messages; refuses a line over the cap as soon as it is."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.size = 0
        """How many bytes of a message have come that is not whole yet."""

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that `data` completes, in order."""
        lines = data.split(b"\n")
        if len(lines) == 2 and not lines[1] and not self._parts and len(data) <= MAX_MESSAGE_BYTES:
            return [decode(lines[0])]  # as nearly always: one message, whole
        messages = []
        for part in lines[:-1]:
            self._keep(part)
            messages.append(decode(b"".join(self._parts)))
            self._parts, self.size = [], 0
        if lines[-1]:
            self._keep(lines[-1])
        return messages

    def _keep(self, part: bytes) -> None:
        self.size += len(part)
        if self.size > MAX_MESSAGE_BYTES:
            raise ProtocolError("a message over {:,} bytes".format(MAX_MESSAGE_BYTES))
        self._parts.append(part)
