"""Removes secrets from text that goes to a model: by their shape, and by values that are known.

SECURITY: a seat belt. It finds secrets in plain text, base64, base 16, URLs and JSON. Code that
wants to smuggle a secret out can encode it in another way, which this does not find.
"""

from __future__ import annotations

import base64
import functools
import json
import math
import re
import urllib.parse
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.errors import ConfigError
from atoll.text.secrets import ASSIGNED, ASSIGNMENT, SHAPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from atoll.text.secrets import Shape

STRETCH, OVERLAP = 1 << 16, 1 << 12
"""Characters searched in one call of `re`, and how far beyond them a match may extend."""
SHORTEST_KNOWN = 6
"""Least characters of a known value: a shorter one would also match inside ordinary words."""
LEAST_LENGTH, LEAST_WORD, LEAST_BITS = 12, 16, 32.0
"""Least size of an environment variable's value to be searched for: characters, characters if
all are letters, and bits of entropy."""
_SECRET_NAME = re.compile(
    r"PASSW|PASSPHRASE|SECRET|TOKEN|CREDENTIAL|(?:API|ACCESS|PRIVATE|AUTH)_?KEY|_KEY$|_PWD$"
    r"|(?:DATABASE|DB|REDIS|MONGO|AMQP|BROKER|SENTRY)_?(?:URL|URI|DSN)$",
    re.IGNORECASE,
)
_PLAIN_NAME = re.compile(r"[\w.-]{1,100}\Z", re.ASCII)
_STANDS_FOR_ONE = re.compile(
    r"\[redacted|[<$%{/]|\*+$|x+$|\.{3}|your|change|example|placeholder|none$|null$|true$|false$"
    r"|undefined$|process\.env|os\.|env\.|https?:",
    re.IGNORECASE,
)
_PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+\Z")
_JOINTS = str.maketrans("", "", "_-.")
_CONSTANT = re.compile(r"[A-Z_]+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Redacted:
    """A text without its secrets, and how many of each kind there were."""

    text: str
    counts: Mapping[str, int]


class Redactor:
    """Replaces each secret by its kind: `[redacted: aws-key]`.

    `known` maps names to secret values, and the name is shown; or it lists values without names.
    """

    def __init__(self, known: Mapping[str, str] | Iterable[str] = ()) -> None:
        named = known.items() if isinstance(known, Mapping) else (("known-value", v) for v in known)
        self._known: dict[str, str] = {}
        for name, value in named:
            if len(value) < SHORTEST_KNOWN:
                raise ConfigError(
                    f"a known secret must have at least {SHORTEST_KNOWN} characters, "
                    f"{name!r} has {len(value)}: leave it out"
                )
            kind = name if _PLAIN_NAME.match(name) else "known-value"
            self._known |= dict.fromkeys(_disguises(value), kind)

    def redact(self, text: str) -> str:
        """Return the text without its secrets."""
        return self.examine(text).text

    def examine(self, text: str) -> Redacted:
        """Return the text without its secrets, and how many of each kind were replaced."""
        counts: Counter[str] = Counter()
        text = self._without_known(text, counts)
        lower = text.lower()
        shapes = tuple(shape for shape in SHAPES if any(has in lower for has in shape.has))
        if shapes:
            text = _sub(_expression(shapes), functools.partial(_shaped, counts), text)
        if any(word in lower for word in ASSIGNED):
            text = _sub(ASSIGNMENT, functools.partial(_assigned, counts), text)
        return Redacted(text=text, counts=counts)

    def _without_known(self, text: str, counts: Counter[str]) -> str:
        there = sorted((one for one in self._known if one in text), key=len, reverse=True)
        if not there:
            return text

        def mark(found: re.Match[str]) -> str:
            return _mark(self._known[found[0]], counts)

        return re.sub("|".join(map(re.escape, there)), mark, text)


def secrets_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables whose names sound secret, for `Redactor`.

    A value that could be an ordinary word is left out: `POSTGRES_PASSWORD=postgres` must not take
    every "postgres" out of a text.
    """
    return {
        name: value
        for name, value in environ.items()
        if _SECRET_NAME.search(name) and is_hard_to_guess(value)
    }


def is_hard_to_guess(value: str) -> bool:
    """Return whether a value has enough characters and entropy that a match is no coincidence.

    A value of letters alone needs more characters: it may be a word of a dictionary.
    """
    counts = Counter(value)
    bits = -sum(n * math.log2(n / len(value)) for n in counts.values())
    least = LEAST_WORD if value.isalpha() else LEAST_LENGTH
    return len(value) >= least and bits >= LEAST_BITS


def _sub(expression: re.Pattern[str], mark: Callable[[re.Match[str]], str], text: str) -> str:
    """Replace matches as `expression.sub` does, but let other threads run in between.

    `re` holds the GIL during one call, so a long text is searched in stretches.
    """
    parts: list[str] = []
    at = 0
    while (found := _next(expression, text, at)) is not None:
        parts += text[at : found.start()], mark(found)
        at = found.end()
    return "".join((*parts, text[at:]))


def _next(expression: re.Pattern[str], text: str, at: int) -> re.Match[str] | None:
    while at < len(text):
        stop = at + STRETCH
        found = expression.search(text, at, stop + OVERLAP)
        if found is None or found.start() >= stop:
            at = stop
        elif found.end() < stop + OVERLAP:
            return found
        elif whole := expression.match(text, found.start()):  # it may extend beyond the stretch
            return whole
        else:
            at = found.start() + 1
    return None


def _disguises(given: str) -> Iterable[str]:
    """Yield the encodings of a value, with and without the spaces around it."""
    for value in {given, given.strip()}:
        if len(value) >= SHORTEST_KNOWN:
            yield from _forms(value)


def _forms(value: str) -> Iterable[str]:
    data = value.encode("utf-8", "surrogatepass")
    yield value
    for write in (repr, ascii):
        yield write(value)[1:-1]
        yield write('"' + value)[2:-1]  # beside double quotes, Python escapes the single ones
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield urllib.parse.quote(data, safe="")
    yield urllib.parse.quote_plus(data)
    yield data.hex()
    yield data.hex().upper()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(data).decode()
        for before in range(3):  # base64 has groups of three bytes: the value may begin at any
            text = encode(bytes(before) + data).decode().rstrip("=")
            whole = text[(0, 2, 3)[before] : (before + len(data)) // 3 * 4]
            if len(whole) >= SHORTEST_KNOWN:
                yield whole


@functools.cache
def _expression(shapes: tuple[Shape, ...]) -> re.Pattern[str]:
    """Return one expression for all shapes, with a group for each, named by its kind."""
    alternatives = (f"(?P<{_group(shape.kind)}>{shape.expression})" for shape in shapes)
    return re.compile("|".join(alternatives), re.VERBOSE | re.ASCII)


def _group(kind: str) -> str:
    return kind.replace("-", "_")


_KINDS = {_group(shape.kind): shape.kind for shape in SHAPES}


def _shaped(counts: Counter[str], found: re.Match[str]) -> str:
    group = found.lastgroup or ""
    secret = found.groupdict().get(f"{group}_secret")
    if secret is None:
        return _mark(_KINDS[group], counts)
    if _STANDS_FOR_ONE.match(secret) or (group == "authorization" and _is_name(secret)):
        return found[0]
    return _replaced(found, f"{group}_secret", _mark(_KINDS[group], counts))


def _assigned(counts: Counter[str], found: re.Match[str]) -> str:
    group = next(name for name in ("double", "single", "bare") if found[name] is not None)
    value, is_bare = found[group], group == "bare"
    if _STANDS_FOR_ONE.match(value) or (is_bare and found["call"]) or " " in value:
        return found[0]
    if not (_is_bare_secret(found, value) if is_bare else _is_quoted_secret(found, value)):
        return found[0]
    return _replaced(found, group, _mark(found["name"].lower(), counts))


def _is_quoted_secret(found: re.Match[str], value: str) -> bool:
    """Return whether a quoted value is a secret: a password may be a word, a token may not."""
    name = found["name"].lower()
    if name in ("token", "credential"):
        return len(value) >= 8 and not _is_name(value)
    return not (name in value.lower() and _is_name(value))


def _is_bare_secret(found: re.Match[str], value: str) -> bool:
    """Return whether a value without quotes is a secret, and not a name in code.

    Names in code have no digits, or are names joined by dots.
    """
    name, sign = found["name"], found["sign"]
    if name.isupper() and sign == "=":  # as in a shell
        return not _CONSTANT.match(value) and not value.isdigit()
    if value.isdigit() or _is_name(value) or sign.endswith(":"):
        return False
    digits = any(map(str.isdigit, value))
    return digits and (
        name.lower().startswith("pass") or not value.rstrip("0123456789").isidentifier()
    )


def _is_name(value: str) -> bool:
    """Return whether a value consists of words, or of names joined by dots."""
    return value.translate(_JOINTS).isalpha() or _PATH.match(value) is not None


def _replaced(found: re.Match[str], group: str, mark: str) -> str:
    whole, start = found[0], found.start()
    return whole[: found.start(group) - start] + mark + whole[found.end(group) - start :]


def _mark(kind: str, counts: Counter[str]) -> str:
    counts[kind] += 1
    return f"[redacted: {kind}]"
