"""Every attack of the corpus against every backend that it concerns: none gets through."""

from __future__ import annotations

from typing import TYPE_CHECKING

import corpus
import harness
import pytest

from atoll.backends import registry

if TYPE_CHECKING:
    from corpus import Attack, Step

CASES = [(name, attack) for name in registry.names() for attack in corpus.for_backend(name)]
STEPS = [
    (name, attack.id, step)
    for name, attack in CASES
    for step in attack.then
    if harness.unsupported(step, registry.load(name).capabilities)
]


def judge(attack: Attack, backend: str) -> None:
    """Fail with everything that got through; skip with the reason where it says nothing."""
    verdict = harness.run(attack, backend)
    if verdict.skipped:
        pytest.skip(verdict.skipped)
    assert verdict.held, f"{attack.passes}\n" + "\n".join(verdict.failures)


def test_every_backend_has_its_layers_named() -> None:
    assert set(registry.names()) <= set(corpus.LAYERS)


@pytest.mark.parametrize(
    ("backend", "attack"), CASES, ids=[f"{name}-{attack.id}" for name, attack in CASES]
)
def test_attack_does_not_get_through(backend: str, attack: Attack) -> None:
    judge(attack, backend)


@pytest.mark.parametrize(
    ("backend", "ident", "step"), STEPS, ids=[f"{b}-{i}-{s.session}" for b, i, s in STEPS]
)
def test_step_is_run(backend: str, ident: str, step: Step) -> None:
    pytest.skip(f"NOT SUPPORTED: {backend} cannot {step.kind}; the rest of {ident} is run")
