"""Attacks of our own, beyond the corpus: the same classes by other ways."""

from __future__ import annotations

from typing import TYPE_CHECKING

import corpus
import pytest
from test_attacks import judge

from atoll.backends import registry

if TYPE_CHECKING:
    from corpus import Attack

CASES = [
    (name, attack) for name in registry.names() for attack in corpus.for_backend(name, corpus.EXTRA)
]


def test_extra_attacks_are_not_in_the_corpus() -> None:
    given = {attack.code for attack in corpus.load()}
    extra = corpus.load(corpus.EXTRA)
    assert not [attack.id for attack in extra if attack.code in given]
    assert len({attack.id for attack in extra}) == len(extra) >= 60


@pytest.mark.parametrize(
    ("backend", "attack"), CASES, ids=[f"{name}-{attack.id}" for name, attack in CASES]
)
def test_attack_does_not_get_through(backend: str, attack: Attack) -> None:
    judge(attack, backend)
