"""The harness itself: it must find out a sandbox that does not hold, or a pass means nothing."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

import canaries
import corpus
import harness
import hostchecks
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

    capabilities = frozenset({atoll.Capability.SAVE})

    def __init__(self, state: bytes | None = None, **_options: object) -> None:
        self.state = state

    def save(self) -> bytes:
        return b"state"

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
        kind = Outcome.ERROR if child.returncode else Outcome.OK
        return atoll.SandboxResult(kind=kind, stdout=out, error=f"exit {child.returncode}")

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


class Explosive:
    """Writes outside when it is loaded."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.mknod, (str(canaries.planted().outside / "loaded-on-the-host"),)


class HostLoadingSandbox(NoSandbox):
    """Loads a guest's pickle on the host."""

    def save(self) -> bytes:
        return pickle.dumps(Explosive())

    def __init__(self, state: bytes | None = None, **_options: object) -> None:
        if state is not None:
            pickle.loads(state)


class NeverSavingSandbox(NoSandbox):
    """Cannot save what it should."""

    def save(self) -> bytes:
        raise atoll.StateError("no state today")


class CrashingSandbox(NoSandbox):
    """Lets what guest code does at saving become a fault of the host's."""

    def save(self) -> bytes:
        raise RecursionError("too deep")


class LitteringSandbox(NoSandbox):
    """Leaves what it wrote to the host's disk."""

    def __exit__(self, *_exc: object) -> None:
        folder = Path(tempfile.mkdtemp("-atoll"))
        (folder / "left").write_bytes(bytes(96 << 20))


class StuckHostSandbox(NoSandbox):
    """Serves one guest at a time: while an attack runs, a neighbour waits."""

    busy = threading.Lock()

    def execute(self, code: str, *, timeout_ms: float = 5000) -> atoll.SandboxResult:
        with self.busy:
            if "sleep" in code:
                time.sleep(4)
            return atoll.SandboxResult(kind=Outcome.OK, stdout="alive 42")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A backend that does not confine anything, with the endings that attacks have there."""
    name = f"stand-in-{request.param.__name__}"
    monkeypatch.setattr(atoll, "create_sandbox", request.param)
    known = {attack.id: ("ok", "error None", "broken") for attack in corpus.load()}
    monkeypatch.setattr(corpus, "endings", lambda _: known)
    return name


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


@pytest.mark.parametrize("stand_in", [NoSandbox, NeverSavingSandbox], indirect=True)
def test_state_that_does_not_come_back_is_found_out(
    stand_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atoll, "describe_state", lambda _: _Nothing())
    (failure, *_) = harness.run(_entry("ctl-state-restore"), stand_in).failures
    assert failure in ("then restore: exit 1", "save: no state today")


@pytest.mark.parametrize("stand_in", [HostLoadingSandbox], indirect=True)
def test_state_that_is_loaded_on_the_host_is_found_out(stand_in: str) -> None:
    left = canaries.planted().outside / "loaded-on-the-host"
    try:
        failures = harness.run(_entry("nat-state-reduce-host-exec"), stand_in).failures
    finally:
        left.unlink(missing_ok=True)
    assert "the outside folder changed" in failures[-1]


@pytest.mark.parametrize("stand_in", [CrashingSandbox], indirect=True)
def test_saving_that_raises_anything_else_is_found_out(stand_in: str) -> None:
    failures = harness.run(_entry("nat-state-deep-recursion"), stand_in).failures
    assert failures == ["save: the host raised RecursionError: too deep"]


@pytest.mark.parametrize("stand_in", [LitteringSandbox], indirect=True)
@pytest.mark.parametrize("check", ["disk_freed", "workspace_removed"])
def test_files_that_are_left_are_found_out(
    stand_in: str, check: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(hostchecks, "END_SECONDS", 0)
    (failure,) = _run_with(check, stand_in, "1 / 0").failures
    assert failure.split(": ", 1)[1].startswith(
        ("96 MiB are still taken", "working folders are left")
    )


@pytest.mark.parametrize("stand_in", [StuckHostSandbox, NoSandbox], indirect=True)
def test_a_host_that_is_stuck_is_found_out(stand_in: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostchecks, "SLOWER_AT_MOST", 5)
    monkeypatch.setattr(hostchecks, "FEWEST_ROUNDS", 20)  # a busy machine makes few
    failures = _run_with("neighbour_latency_ok", stand_in, "import time; time.sleep(4)").failures
    if "Stuck" not in stand_in:
        assert failures == []
    else:
        assert failures[0].startswith("NeighbourAnswers: a neighbour answered ")


@pytest.mark.parametrize("stand_in", [NoSandbox], indirect=True)
@pytest.mark.parametrize("code", ["prnt('PWNED')", "import os; os.getpidd()", "print('PWNED'"])
def test_an_attack_with_a_typo_is_found_out(stand_in: str, code: str) -> None:
    (failure,) = _run_with("outside_dir_unchanged", stand_in, code, kind="ok").failures
    assert failure.startswith("it ended with 'error None' instead of ('ok',)")


def _run_with(check: str, stand_in: str, code: str, kind: str = "error None") -> harness.Verdict:
    """Run an attack with one host check against a stand-in, where it may end in one way."""
    attack = corpus.Attack(
        id="made-up", category="made-up", layer="all", code=code, passes="", host_check=(check,)
    )
    corpus.endings(stand_in)[attack.id] = (kind, "ok") if "sleep" in code else (kind,)
    return harness.run(attack, stand_in)


class _Nothing:
    left_out = ()


def _entry(ident: str) -> corpus.Attack:
    return next(attack for attack in corpus.load() if attack.id == ident)
