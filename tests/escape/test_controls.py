"""Every attack is seen to bite where nothing holds it: else "no PWNED" would say nothing."""

from __future__ import annotations

from collections.abc import Sequence

import controls
import corpus
import pytest
import weakened
from weakened import Ending

TYPOS = frozenset({"NameError", "SyntaxError", "AttributeError", "IndentationError"})
MEANT = frozenset({"rst-exc-str-raises"})
"""Attacks that raise one of these on purpose."""

MENDED = {"rst-exc-group-split-nontuple": "TypeError"}
"""Attacks that end an interpreter, and what newer versions of Python raise instead."""
HANGING = frozenset(attack.id for attack in corpus.load() if attack.bites == "hang")


@pytest.mark.timeout(900)
def test_every_attack_bites_without_walls(pytestconfig: pytest.Config) -> None:
    """One run, side by side; each that does not bite is named.

    System calls have a sandbox each: one that bites may stop the process that runs the others.
    """
    attacks: Sequence[corpus.Attack] = controls.to_run()
    assert sum(map(controls.claims, attacks)) > 250
    if pytestconfig.getoption("matrix") == "sample":
        attacks = corpus.sample(attacks, 8)
    cells = {one.id: controls.cells(one) for one in attacks}
    sharing = {one.id for one in attacks if _shares(one)}
    seen = weakened.run(cells, hanging=HANGING, sharing=sharing)
    assert {one.id: seen[one.id] for one in attacks if not _bites(one, seen[one.id])} == {}
    typos = {one: how for one, how in seen.items() if how.error in TYPOS and one not in MEANT}
    assert typos == {}


def _shares(attack: corpus.Attack) -> bool:
    return attack.category != "syscall" and corpus.is_harmless(attack, "native")


def _bites(attack: corpus.Attack, ending: Ending) -> bool:
    """Whether it got through; or hangs, fills the memory or crashes, if that is the attack."""
    if controls.claims(attack):
        return ending.bit
    if attack.bites == "crash":  # what newer versions of Python have mended is refused there
        return ending.signal > 0 or MENDED.get(attack.id) == ending.error
    return ending.hung or ending.error == "MemoryError"


def test_every_attack_has_its_ending_recorded_and_none_is_a_typo() -> None:
    for backend in corpus.LAYERS:
        recorded = corpus.endings(backend)
        assert set(recorded) == {attack.id for attack in corpus.for_backend(backend)}
        if backend in ("native", "daemon"):  # the others refuse what plain Python knows
            ended = {(one, way.split()[-1]) for one, ways in recorded.items() for way in ways}
            assert {(one, way) for one, way in ended if way in TYPOS and one not in MEANT} == set()


def test_attacks_without_a_control_are_listed_with_the_reason() -> None:
    known = {attack.id: attack for attack in corpus.load()}
    assert set(controls.NOT_SHOWN) <= set(known)
    assert set(controls.NEEDS_HOLE) <= set(known) - set(controls.NOT_SHOWN)
    assert len(controls.NOT_SHOWN) <= 25
    left = {one.id for one in known.values() if one.layer not in corpus.WAITING}
    shown = {one.id for one in controls.to_run()}
    assert shown <= left - set(controls.NOT_SHOWN)
    judged_by_ending = [known[one] for one in left - shown - set(controls.NOT_SHOWN)]
    assert not [one.id for one in judged_by_ending if controls.claims(one) and not one.arch]


@pytest.mark.parametrize(
    "code",
    [
        "prnt('PWNED')",
        "print('PWND')",
        "if 1 print('PWNED')",
        "import os; os.opn('x')\nprint('PWNED')",
    ],
)
def test_a_typo_does_not_bite(code: str) -> None:
    assert not weakened.run({"typo": [code]})["typo"].bit
