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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_WORDS = r"password|passwd|passphrase|secret|token|credential|(?:api|access|private|auth)[_-]?key"
_AFTER = r"(?:[_-]?(?:access[_-]?key|key|value|base|prod|dev|test|\d{1,4}+))?"
_BREAKS = r"""(?:[ \t"'+,>|]|\r?\n|\\[rn]){0,16}"""
_START = r"(?:(?<![\w-])|(?<=\\[nrt]))"  # JSON writes a line's end as two characters
_ALPHABET = "A-Za-z0-9+/="


def _breaks(name: str) -> str:
    """Return an atomic match of what may separate a key's lines: `re` does not backtrack into it.

    A lookahead is atomic in every Python; `(?>...)` is wrong in CPython before 3.11.5.
    """
    return f"(?=(?P<{name}>{_BREAKS}))(?P={name})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A kind of secret. Each one contains at least one of the texts in `has`, in lower case.

    If the expression has a group `KIND_secret`, that group is replaced, otherwise the whole match.
    """

    kind: str
    has: tuple[str, ...]
    expression: str


def _shape(kind: str, has: str, expression: str) -> Shape:
    return Shape(kind=kind, has=tuple(has.split()), expression=expression)


SHAPES = (
    _shape(
        "private-key",
        "private",
        rf"-----BEGIN\ [A-Z0-9\ ]{{0,30}}PRIVATE\ KEY(?:\ BLOCK)?-----"
        rf"(?:{_breaks('before_line')}(?:(?:Proc-Type|DEK-Info|Version|Comment):[^\n\\]{{0,200}}+"
        rf"|[{_ALPHABET}]{{16,}}+))+"
        rf"(?:{_breaks('before_rest')}[{_ALPHABET}]{{0,15}}+"
        rf"{_breaks('before_end')}-----END[^-\n]{{0,60}}+-----)?",
    ),
    _shape(
        "aws-key",
        "akia asia aroa aida agpa anpa anva abia acca",
        rf"{_START}(?:A(?:KIA|SIA|ROA|IDA|GPA|NPA|NVA|BIA|CCA))[A-Z0-9]{{16}}(?![A-Za-z0-9])",
    ),
    _shape(
        "github-token",
        "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_",
        r"gh[pousr]_[A-Za-z0-9]{36,}+|github_pat_\w{22,}+",
    ),
    _shape(
        "gitlab-token",
        "glpat- gldt- glrt- glptt- glcbt- glsoat-",
        r"gl(?:pat|dt|rt|ptt|cbt|soat)-[\w-]{20,}+",
    ),
    _shape("slack-token", "xox xapp-", rf"{_START}(?:xox[abeoprs]|xapp)-[\w-]{{10,}}+"),
    _shape("slack-webhook", "hooks.slack", r"hooks\.slack\.com/(?:services|workflows)/[\w/]{20,}+"),
    _shape(
        "stripe-key",
        "k_live_ k_test_ whsec_",
        rf"{_START}(?:[sr]k_(?:live|test)_[A-Za-z0-9]{{16,}}+|whsec_[\w+/]{{24,}}+)",
    ),
    _shape("anthropic-key", "sk-ant-", r"sk-ant-[\w-]{20,}+"),
    _shape(
        "openai-key",
        "sk-",
        rf"{_START}sk-(?:(?:proj|svcacct|admin|None)-[\w-]{{20,}}+|[A-Za-z0-9]{{32,}}+)",
    ),
    _shape(
        "google-key",
        "aiza ya29. gocspx-",
        rf"{_START}(?:AIza[\w-]{{35}}(?![\w-])|ya29\.[\w-]{{20,}}+|GOCSPX-[\w-]{{20,}}+)",
    ),
    _shape("huggingface-token", "hf_", rf"{_START}hf_[A-Za-z0-9]{{30,}}+"),
    _shape("npm-token", "npm_", rf"{_START}npm_[A-Za-z0-9]{{36}}(?!\w)"),
    _shape("pypi-token", "pypi-ag", r"pypi-Ag[\w-]{40,}+"),
    _shape("sendgrid-key", "sg.", rf"{_START}SG\.[\w-]{{16,32}}\.[\w-]{{32,64}}+"),
    _shape("square-key", "sq0", rf"{_START}sq0[a-z]{{3}}-[\w-]{{22,64}}+"),
    _shape("telegram-token", ":aa", rf"{_START}\d{{8,10}}:AA[\w-]{{33}}(?![\w-])"),
    _shape("twilio-key", "sk ac", rf"{_START}(?:SK|AC)[0-9a-f]{{32}}(?![A-Za-z0-9])"),
    _shape("mailchimp-key", "-us", rf"{_START}[0-9a-f]{{32}}-us\d{{1,2}}(?![\w-])"),
    _shape("artifactory-token", "akc", rf"{_START}AKC[A-Za-z0-9]{{10,}}+"),
    _shape("azure-key", "accountkey=", r"AccountKey=(?P<azure_key_secret>[A-Za-z0-9+/]{40,}+=*+)"),
    _shape(
        "discord-token",
        ".",
        rf"{_START}[MNO][A-Za-z0-9]{{23,25}}\.[\w-]{{6}}\.[\w-]{{27,38}}(?![\w-])",
    ),
    _shape("jwt", "eyj", rf"{_START}eyJ[\w-]{{8,}}+\.eyJ[\w-]{{8,}}+\.[\w-]{{8,}}+"),
    _shape(
        "authorization",
        "bearer basic authorization",
        r"""(?i: \b(?:bearer|basic)\ | \bauthorization\\?["']?\ ?[:=]\ ?\\?["']?(?:\w{1,16}\ )? )
        (?P<authorization_secret>[\w.~+/-]{16,}+=*+)""",
    ),
    _shape(
        "url-password",
        "://",
        r"""://[^\s:/?#@"'<>]{0,200}+:(?P<url_password_secret>[^\s/@"'<>]{1,200}+)@""",
    ),
)

ASSIGNMENT = re.compile(
    rf"""(?P<name>(?i:{_WORDS})) (?i:{_AFTER})
    (?P<sign> \\?["']?+ \ {{0,8}}+ (?: :=|=>|[:=] ) \ {{0,8}}+ )
    (?: \\?"(?P<double>(?:[^"\\\n]|\\[^"\n]){{4,512}})\\?"
      | \\?'(?P<single>(?:[^'\\\n]|\\[^'\n]){{4,512}})\\?'
      | (?P<bare>[^\s"'`,;&<>()\[\]{{}}\\]{{6,}}+) (?P<call>[(\[]?+) )""",
    re.VERBOSE | re.ASCII,
)
"""A name that sounds secret and the value assigned to it, which may or may not be a secret."""
ASSIGNED = ("pass", "secret", "token", "credential", "key")
"""Texts of which one is in every name that ASSIGNMENT matches."""

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
        there = sorted((item for item in self._known if item in text), key=len, reverse=True)
        if not there:
            return text

        def mark(match: re.Match[str]) -> str:
            return _mark(self._known[match[0]], counts)

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
    """Return whether a value has enough characters and entropy that a match is not a coincidence.

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
    while (match := _next(expression, text, at)) is not None:
        parts += text[at : match.start()], mark(match)
        at = match.end()
    return "".join((*parts, text[at:]))


def _next(expression: re.Pattern[str], text: str, at: int) -> re.Match[str] | None:
    while at < len(text):
        stop = at + STRETCH
        match = expression.search(text, at, stop + OVERLAP)
        if match is None or match.start() >= stop:
            at = stop
        elif match.end() < stop + OVERLAP:
            return match
        elif whole := expression.match(text, match.start()):  # it may extend beyond the stretch
            return whole
        else:
            at = match.start() + 1
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


def _shaped(counts: Counter[str], match: re.Match[str]) -> str:
    group = match.lastgroup or ""
    secret = match.groupdict().get(f"{group}_secret")
    if secret is None:
        return _mark(_KINDS[group], counts)
    if _STANDS_FOR_ONE.match(secret) or (group == "authorization" and _is_name(secret)):
        return match[0]
    return _replaced(match, f"{group}_secret", _mark(_KINDS[group], counts))


def _assigned(counts: Counter[str], match: re.Match[str]) -> str:
    group = next(name for name in ("double", "single", "bare") if match[name] is not None)
    value, is_bare = match[group], group == "bare"
    if _STANDS_FOR_ONE.match(value) or (is_bare and match["call"]) or " " in value:
        return match[0]
    if not (_is_bare_secret(match, value) if is_bare else _is_quoted_secret(match, value)):
        return match[0]
    return _replaced(match, group, _mark(match["name"].lower(), counts))


def _is_quoted_secret(match: re.Match[str], value: str) -> bool:
    """Return whether a quoted value is a secret: a password may be a word, a token may not."""
    name = match["name"].lower()
    if name in ("token", "credential"):
        return len(value) >= 8 and not _is_name(value)
    return not (name in value.lower() and _is_name(value))


def _is_bare_secret(match: re.Match[str], value: str) -> bool:
    """Return whether a value without quotes is a secret, and not a name in code.

    Names in code have no digits, or are names joined by dots.
    """
    name, sign = match["name"], match["sign"]
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


def _replaced(match: re.Match[str], group: str, mark: str) -> str:
    whole, start = match[0], match.start()
    return whole[: match.start(group) - start] + mark + whole[match.end(group) - start :]


def _mark(kind: str, counts: Counter[str]) -> str:
    counts[kind] += 1
    return f"[redacted: {kind}]"
