"""A question as a search sees it: its names, its words, what kind of answer it wants.

Only words are looked at. Everything here is a guess that the text of the context confirms or not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_SENTENCE = re.compile(r"(?<=[.?!])\s+(?=[A-Z\"'])")
_FORM = re.compile(r"(?i)^(?:please\s+)?(?:answer|reply|respond|return|write|output|give)\b")
_EXAMPLE = re.compile(r"(?i)\b(?:such as|like|e\.g\.|for example,?)\s+([\"'`]?)([^\s,\"'`]+)\1")
_QUOTED = re.compile(r"[\"\u201c`]([^\"\u201d`\n]{2,60})[\"\u201d`]|(?<!\w)'([^'\n]{2,60})'(?!\w)")
_CODED = re.compile(
    r"[A-Za-z0-9]+(?:[-_./:][A-Za-z0-9_]+)+|\b[A-Za-z]+\d\w*|\b\w+_\w+|\b[a-z]+[A-Z]\w+"
)
"""Words that people make up to name things: S-10203, load_crew_7, engine/a_b.py, getUser."""
_NAMED = re.compile(
    r"[A-Z][\w'\u2019-]*(?:\s+(?:(?:of|de|van|von|the|and)\s+(?=[A-Z]))?(?:[A-Z][\w'\u2019-]*|\d+\b))*"
)
_WORD = re.compile(r"[^\W\d_](?:[\w-]|['\u2019](?!s\b))*|\d(?:[\d.,]*\d)?")
_STARTERS = frozenset(
    """
    a according after all among an and any are as at based before between by can could did do does
    during each every exactly find for from give had has have how if in is it list look may name of
    on please say show tell that the their then there these they this those through to two under was
    were what when where which while who whom whose why will with within would
""".split()
)
COMMON = _STARTERS | frozenset(
    """
    about above again alone also answer be been being both but called come context current currently
    document documents done exact exactly file files get given gives got go goes he her here him his
    i into its itself just kind last latest like made make makes many me more most much my no not
    now
    number one only or other our out over own part please same she so some such text than them thing
    things too up us used using very want we well you your does mention mentioned state states say
    says said according passage
""".split()
)
_WANTED = re.compile(
    r"(?i)\b(?:which|what)\s+(?:is|was|are|were)\s+the\s+((?:[\w'-]+\s+){0,3}?[\w'-]+)\s+"
    r"(?:of|for|in|at|on|to)\b"
    r"|\b(?:which|what|whose)\s+([\w'-]+)"
)
_COUNTS = re.compile(
    r"(?i)\b(how (?:many|often|much)|number of|count|total|sum|average|mean|altogether|in all|"
    r"most|least|fewest|highest|lowest|largest|smallest|biggest|greatest|longest|shortest|oldest|"
    r"newest|cheapest|costliest|heaviest|lightest|maximum|minimum|same|identical|share[sd]?|both|"
    r"pairs?|twins?|duplicates?|distinct|different|unique|each|every|all|list|which two|twice|"
    r"more than|fewer than|less than|at least|at most|combined|together|earliest|first|last)\b"
)
_ENDINGS = ("ations", "ation", "ings", "ing", "ies", "ied", "ers", "es", "ed", "er", "s", "y", "e")
LEAST_STEM, LONGEST = 4, 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question, and what a search can use of it."""

    text: str
    """The question itself, without the sentence on the form of its answer."""
    form: str = ""
    """The sentence on the form of the answer, such as "Answer with the code alone."."""
    names: tuple[str, ...] = ()
    """Names of particular things, which a passage has to contain."""
    words: tuple[str, ...] = ()
    """The other words that tell something, in lower case."""
    wanted: str = ""
    """The kind of thing that is asked for: "room" of "In which room is ...?"."""
    example: str = ""
    """An answer of the right form that the question gives, such as ABC-1234."""
    earlier: str = ""
    """Earlier questions of a session with their answers."""
    cues: frozenset[str] = field(default_factory=frozenset)
    """Words that speak for counting or comparing, in lower case."""

    @property
    def whole(self) -> str:
        """The question with the sentence on the form of its answer."""
        return f"{self.text} {self.form}".strip()


def asked_of(question: str) -> Asked:
    """Return what a search can use of a question."""
    question, _, earlier = question.partition("\n\nBefore this question there were:")
    question = question[:LONGEST]  # a guest may have written it
    sentences = _SENTENCE.split(question.strip())
    form = [one for one in sentences[1:] if _FORM.match(one)]
    text = " ".join(one for one in sentences if one not in form)
    names = _names(text)
    parts = {part.lower() for name in names for part in _WORD.findall(name)}
    words = [word.lower() for word in _WORD.findall(text)]
    telling = [w for w in words if w not in COMMON and w not in parts and len(w) > 1]
    nouns = [(of or which).split()[-1].lower() for of, which in _WANTED.findall(text)]
    nouns = [noun for noun in nouns if noun not in _STARTERS]
    example = _EXAMPLE.search(" ".join(form) or question)
    return Asked(
        text=text,
        form=" ".join(form),
        names=tuple(names),
        words=tuple(dict.fromkeys(telling)),
        wanted=nouns[0] if nouns else "",
        example=example[2].rstrip(".,;") if example else "",
        earlier=earlier,
        cues=frozenset(match.lower() for match in _COUNTS.findall(text)),
    )


def stem(word: str) -> str:
    """Return the beginning that a word's forms have in common: `carri` of carries, carried."""
    lower = word.lower()
    for ending in _ENDINGS:
        if lower.endswith(ending) and len(lower) - len(ending) >= LEAST_STEM:
            return lower[: -len(ending)]
    return lower


def shapes_of(example: str) -> list[re.Pattern[str]]:
    """Return patterns for answers that look like an example: the same letters first, then any."""
    if not re.search(r"\d|[/_]", example):
        return []
    runs = _RUN.findall(example)
    strict = "".join(rf"\d{{{len(run)}}}" if run.isdigit() else re.escape(run) for run in runs)
    loose = "".join(_class_of(run) for run in runs)
    patterns = [strict, loose] if re.search(r"\d", example) else [loose]
    return [re.compile(rf"(?<![\w-]){pattern}(?![\w-])") for pattern in patterns]


_RUN = re.compile(r"[A-Z]+|[a-z_]+|\d+|.")


def _class_of(run: str) -> str:
    if run.isdigit():
        return r"\d+"
    if run.isupper():
        return f"[A-Z]{{{len(run)}}}"
    return "[a-z_]+" if re.fullmatch("[a-z_]+", run) else re.escape(run)


def _names(text: str) -> list[str]:
    found: dict[str, None] = {}
    for match in _QUOTED.finditer(text):
        found[match[1] or match[2]] = None
    for match in _CODED.finditer(text):
        found[match[0].rstrip(".:/")] = None
    for sentence in _SENTENCE.split(text):
        for match in _NAMED.finditer(sentence):
            name = match[0].removesuffix("'s").removesuffix("\u2019s")
            first, _, rest = name.partition(" ")
            if not sentence[: match.start()].strip("\"'\u201c ") and first.lower() in _STARTERS:
                name = rest
            if name and name.lower() not in COMMON and not any(name in other for other in found):
                found[name] = None
    return list(found)
