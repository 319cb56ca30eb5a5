"""Every attack of the corpora against every backend that it concerns: none gets through.

The daemon has the same walls as the backend `native`, and gVisor is in such a jail: a sample of the
attacks is run there, and all of them with `--matrix all`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import corpus
import harness
import pytest
import usable
import variants

from atoll.backends import registry

if TYPE_CHECKING:
    from corpus import Attack

SAMPLED = {"daemon": 16, "gvisor": 32, "native-image": 32, "daemon-image": 64}
"""Of so many attacks of a category one is run there; at least one."""
DEAR = "nat-res-fork-bomb"
"""Costs as much as fifty others, and is the first of its category: a sample leaves it to native."""
BACKENDS = os.environ.get("ATOLL_TEST_BACKENDS", ",".join(registry.names())).split(",")
CASES = (*BACKENDS, *(case for case in variants.IN_IMAGE if variants.backend_of(case) in BACKENDS))
NOT_INSTALLED = frozenset({"sympy", "jinja2", "pandas"})
"""Libraries that the backend `restricted` does not offer, or that no extra of Atoll installs."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "attack" not in metafunc.fixturenames:
        return
    whole = metafunc.config.getoption("matrix") == "all"
    cases = [
        (name, attack)
        for name in CASES
        for attack in _chosen(name, whole=whole)
        if harness.fits_machine(attack)
    ]
    metafunc.parametrize(("backend", "attack"), cases, ids=[f"{n}-{a.id}" for n, a in cases])


def _chosen(case: str, *, whole: bool) -> tuple[Attack, ...]:
    found = corpus.for_backend(variants.backend_of(case))
    if whole or case not in SAMPLED:
        return found
    return corpus.sample([one for one in found if one.id != DEAR], SAMPLED[case])


def test_attack_does_not_get_through(backend: str, attack: Attack) -> None:
    usable.skip_if_missing(backend)
    verdict = harness.run(attack, backend)
    if verdict.skipped and set(attack.needs) <= NOT_INSTALLED:
        pytest.skip(verdict.skipped)
    assert not verdict.skipped
    assert verdict.held, f"{attack.passes}\n" + "\n".join(verdict.failures)


def test_every_backend_has_its_layers_named() -> None:
    assert set(registry.names()) <= set(corpus.LAYERS)


def test_every_layer_has_a_backend_or_waits_for_one() -> None:
    named = {attack.layer for attack in corpus.load()}
    tested = {layer for name in registry.names() for layer in corpus.LAYERS[name]}
    assert named <= tested | set(corpus.WAITING)
    assert not tested & set(corpus.WAITING), "a layer that waits has a backend now"


def test_every_kind_of_step_is_run_by_a_backend_of_its_layer() -> None:
    """A step that a backend cannot run is left out there; some backend of the layer must run it."""
    steps = {(attack.layer, step) for attack in corpus.load() for step in attack.then}
    not_run = {
        (layer, step.kind)
        for layer, step in steps
        if layer not in corpus.WAITING
        and all(
            harness.unsupported(step, registry.load(name).capabilities) for name in _backends(layer)
        )
    }
    assert not_run == set()


def _backends(layer: str) -> list[str]:
    return [name for name in registry.names() if layer in corpus.LAYERS[name]]


def test_a_sample_has_every_category_and_is_the_same_each_time() -> None:
    attacks = corpus.for_backend("native")
    chosen = corpus.sample(attacks)
    assert {one.category for one in chosen} == {one.category for one in attacks}
    assert len(attacks) / corpus.ONE_OF <= len(chosen) < len(attacks) / 4
    assert chosen == corpus.sample(attacks)


def test_ids_and_codes_are_unique() -> None:
    attacks = corpus.load()
    assert len({attack.id for attack in attacks}) == len(attacks)
    assert len({(attack.code, attack.then) for attack in attacks}) == len(attacks)
