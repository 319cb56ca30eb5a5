"""The harness itself: a sandbox that is none must be found out, or a pass would mean nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Self

import corpus
import harness
import pytest

import atoll
from atoll.types import Outcome

BITING = [
    attack
    for attack in corpus.for_backend("native")
    if attack.bites == "harness"
    and attack.category in ("secrets", "network", "proc")
    and not attack.needs
]


class NoSandbox:
    """Runs code as a child of ours, with all that we may do."""

    def execute(self, code: str, *, timeout_ms: float = 5000) -> atoll.SandboxResult:
        child = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            close_fds=False,
        )
        try:
            out, _ = child.communicate(timeout=timeout_ms / 1000)
        except subprocess.TimeoutExpired:
            os.kill(child.pid, signal.SIGKILL)
            out, _ = child.communicate()
        return atoll.SandboxResult(kind=Outcome.OK, stdout=out)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        """Nothing to let go."""


class DeadSandbox(NoSandbox):
    """Answers nothing at all."""

    def execute(self, code: str, *, timeout_ms: float = 5000) -> atoll.SandboxResult:
        return atoll.SandboxResult(kind=Outcome.BROKEN)


class RaisingSandbox(NoSandbox):
    """Lets a fault of the guest's become one of the host's."""

    def execute(self, code: str, *, timeout_ms: float = 5000) -> atoll.SandboxResult:
        raise OverflowError("cannot convert float infinity to integer")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A backend that is no sandbox, under a name of its own so that nothing is kept of it."""
    monkeypatch.setattr(atoll, "create_sandbox", lambda **_: request.param())
    return f"stand-in-{request.param.__name__}"


@pytest.mark.parametrize("stand_in", [NoSandbox], indirect=True)
@pytest.mark.parametrize("attack", BITING, ids=[attack.id for attack in BITING])
def test_attack_without_a_sandbox_is_found_out(stand_in: str, attack: corpus.Attack) -> None:
    assert not harness.run(attack, stand_in).held


@pytest.mark.parametrize("stand_in", [DeadSandbox], indirect=True)
def test_sandbox_that_answers_nothing_is_found_out(stand_in: str) -> None:
    failures = harness.run(_entry("nat-sys-bpf"), stand_in).failures
    assert failures == ["the next execution does not work: ['']"]


@pytest.mark.parametrize("stand_in", [RaisingSandbox], indirect=True)
def test_fault_that_the_host_raises_is_found_out(stand_in: str) -> None:
    failures = harness.run(_entry("nat-sys-bpf"), stand_in).failures
    assert failures[0].startswith("attack: the host raised OverflowError")


def _entry(ident: str) -> corpus.Attack:
    return next(attack for attack in corpus.load() if attack.id == ident)
