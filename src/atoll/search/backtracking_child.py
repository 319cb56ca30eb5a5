"""The child process of `backtracking`: reads pieces of text and returns the matches in each.

The host's own Python runs it as a script; it imports nothing of Atoll. A match never crosses the
end of a line, as in RE2 with `never_nl`.
"""

from __future__ import annotations

import re
import resource
import struct
import sys

MEMORY = 1 << 29
CPU_SECONDS = 600
NUMBER = struct.Struct("<q")


def main(most: int) -> None:
    """Read a pattern, then pieces of text, until the host closes the pipe."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    head = receive()
    flags = re.MULTILINE | (re.IGNORECASE if head[0] else re.ASCII)
    encoding = "latin-1" if head[1] else "utf-8"
    try:
        expression = re.compile(head[2:].decode("utf-8", "surrogatepass"), flags)
    except (re.error, OverflowError, RecursionError, MemoryError) as exc:
        send(str(exc).encode()[:500] or b"too large")
        return
    send(b"")
    while True:
        text = receive().decode(encoding, "surrogateescape")
        numbers = in_bytes(text, encoding, find_all(expression, text, most))
        send(b"".join(map(NUMBER.pack, numbers)))


def find_all(expression: re.Pattern[str], text: str, most: int) -> list[int]:
    """Return the spans of at most `most` matches."""
    result: list[int] = []
    at = 0
    while at <= len(text) and len(result) < 2 * most:
        match = expression.search(text, at)
        if match is None:
            break
        line_end = text.find("\n", match.start())
        if 0 <= line_end < match.end():  # it crosses lines: search for one within this line
            match = expression.search(text, match.start(), line_end)
        if match is None:
            at = line_end + 1
            continue
        result += match.span()
        at = max(match.end(), match.start() + 1)
    return result


def in_bytes(text: str, encoding: str, places: list[int]) -> list[int]:
    """Return offsets in characters, given in order, as offsets in bytes."""
    if encoding == "latin-1" or text.isascii():
        return places
    result, at, used = [], 0, 0
    for place in places:
        used += len(text[at:place].encode(encoding, "surrogateescape"))
        at = place
        result.append(used)
    return result


def receive() -> bytes:
    """Read one message; exit if the host has closed the pipe."""
    head = sys.stdin.buffer.read(NUMBER.size)
    if len(head) < NUMBER.size:
        sys.exit(0)
    return sys.stdin.buffer.read(NUMBER.unpack(head)[0])


def send(data: bytes) -> None:
    """Write one message."""
    sys.stdout.buffer.write(NUMBER.pack(len(data)) + data)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
