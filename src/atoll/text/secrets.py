"""The shapes of secrets: for each kind, texts of which one is always in it, and an expression.

Every expression takes time linear in the text: a repeat is bounded or possessive, or nothing that
follows it can make `re` backtrack into it. Only single characters repeat possessively: CPython
before 3.11.5 matches possessive repeats of a group wrongly (gh-106052).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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
    _shape(
        "azure-key",
        "accountkey=",
        r"AccountKey=(?P<azure_key_secret>[A-Za-z0-9+/]{40,}+=*+)",
    ),
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
