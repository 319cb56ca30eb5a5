"""Run one attack against a sandbox through the public interface, and give the verdict.

    open ─▶ attack ─▶ save ─▶ then-steps ─▶ is it alive? ─▶ destroy ─▶ host checks

Attacks that leave a sandbox as it was share one, for as long as it holds (corpus.is_harmless).
An attack on saved states, and one with a step in a restored session, is saved where the backend can.

How each attack ends is recorded in endings.json: an attack that ends in another way has a typo, or
the sandbox has changed.

Used by the tests; also a program, so that a user without test tools can run a corpus:
    python harness.py --backend native-image --json [--sample] [--part 1/4]
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import platform
import sys
import tempfile
import time
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

sys.path.append(str(Path(__file__).resolve().parents[1]))  # as a program it finds its helpers too

import canaries
import corpus
import variants
from hostchecks import CHECKS
from sharing import shared_boxes

import atoll
from atoll import Capability
from atoll.backends.gvisor.sandbox import parked
from atoll.daemon import lifecycle
from atoll.daemon.paths import DaemonPaths
from atoll.hosting.limits import DaemonLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from corpus import Attack, Step

    from atoll import SandboxResult, SyncSandbox

T = TypeVar("T")
ALIVE = "print('alive', 6 * 7)"
TIMEOUT_S = 60.0
"""What an attack may take that ends by itself, on a busy machine too."""
FUEL = 2_000_000_000
"""What an attack gets that ends by it."""
ENDLESS_S = 1.0
"""What an attack gets that runs into its limit: the limit's length changes nothing."""

HANGS_LATER = frozenset(
    {"nat-state-hang-on-dump", "nat-state-hang-on-load", "extra-tamper-int-refcount"}
)
"""Attacks that end by themselves, and run into the limit when the state is saved or a step runs."""

MAY_NEED_RESTART = frozenset({"runtime-tamper"})
"""Categories whose attack ruins the guest's own interpreter: initialize() has to repair it."""

MOST_COLLECTED = 8 << 20
"""Of a file that is taken along; larger ones say nothing more."""

OWN_INTERRUPTS = 20_000
"""What the longest attack of them sends to itself."""

STATE_PATIENCE_S = 10.0
"""What saving or restoring may take above the limit it was given."""


_shared_boxes: dict[tuple[str, str | None], SyncSandbox] = {}
"""One for each backend and image, kept for the attacks of this process that are harmless to each other."""


@dataclass(slots=True)
class Verdict:
    """How an attack fared; `failures` is empty if the sandbox held."""

    id: str
    failures: list[str] = field(default_factory=list)
    ending: str = ""
    """How the attack itself ended: the kind of its result, and the exception's type."""
    not_supported: list[str] = field(default_factory=list)
    skipped: str | None = None
    restarted: bool = False
    seconds: float = 0.0

    @property
    def held(self) -> bool:
        """Whether the sandbox held."""
        return not self.failures


class Run:
    """One attack on its way: what was opened, what was seen, what went wrong."""

    def __init__(self, attack: Attack, backend: str, stack: ExitStack) -> None:
        self.attack, self.backend, self.stack = attack, backend, stack
        self._kind = backend, variants.image_in_use()
        self.canaries = canaries.planted()
        self.verdict = Verdict(attack.id)
        self.shares = corpus.is_harmless(attack, backend)
        self.box = self._shared() if self.shares else self.open()
        self.state: bytes | None = None
        self.outputs: list[str] = []

    @property
    def limit_s(self) -> float:
        """What a cell of this attack, and its state, may take."""
        endless = "timeout" in self.endings or self.attack.id in HANGS_LATER
        return ENDLESS_S if endless else TIMEOUT_S

    @property
    def endings(self) -> tuple[str, ...]:
        """How this attack may end in this backend."""
        return corpus.endings(self.backend).get(self.attack.id, ())

    def open(self, **options: Any) -> SyncSandbox:
        """A sandbox that is destroyed with the run."""
        options["timeout_ms"] = self.limit_s * 1000
        if "fuel" in self.endings:
            options["policy"] = {"fuel_budget": FUEL}
        return self.stack.enter_context(atoll.create_sandbox(backend=self.backend, **options))

    def _shared(self) -> SyncSandbox:
        if self._kind not in _shared_boxes:
            _shared_boxes[self._kind] = atoll.create_sandbox(backend=self.backend)
            shared_boxes.kept.append(self.backend)
        return _shared_boxes[self._kind]

    def end(self) -> None:
        """Replace a shared sandbox that did not hold: it would say nothing about the next attack."""
        if self.shares and not self.verdict.held:
            shared_boxes.kept.remove(self.backend)
            self.stack.enter_context(_shared_boxes.pop(self._kind))

    def execute(self, box: SyncSandbox, code: str, what: str) -> SandboxResult | None:
        """Run a cell; whatever the caller would see is searched for canaries."""
        code = self.canaries.fill(code)
        try:
            result = box.execute(code, timeout_ms=self.limit_s * 1000)
        except Exception as exc:  # faults of guest code must be results
            self.fail(f"{what}: the host raised {type(exc).__name__}: {str(exc)[:200]}")
            return None
        if canaries.MARK in (seen := repr(_without_quotes(result, code))):
            at = seen.index(canaries.MARK)
            self.fail(f"{what}: {seen[max(0, at - 40) : at + 120]!r}")
        self.outputs.append(result.stdout)
        return result

    def fail(self, text: str) -> None:
        """Note a failure."""
        self.verdict.failures.append(text)


def _without_quotes(result: SandboxResult, code: str) -> SandboxResult:
    """Without the lines of the attack itself that a traceback quotes: nothing has printed them."""
    own = {line.strip() for line in code.splitlines()}
    lines = [line for line in result.stderr.splitlines() if line.strip() not in own]
    return dataclasses.replace(result, stderr="\n".join(lines))


def run(attack: Attack, case: str, way: type[Run] | None = None) -> Verdict:
    """Run an attack on a backend, with an image or without, and judge it.

    It runs as a cell, or in another `way`.
    """
    with variants.opened_in_image(case):
        return _run(attack, variants.backend_of(case), way or Run)


def _run(attack: Attack, backend: str, way: type[Run]) -> Verdict:
    reason = skip_reason(attack, backend)
    if reason:
        return Verdict(attack.id, skipped=reason)
    started = time.perf_counter()
    neighbour = _neighbour(backend, variants.image_in_use())
    found = canaries.planted()
    names = dict.fromkeys(CHECKS[name] for name in attack.host_check)
    checks = [check(attack, found, neighbour) for check in names]
    with ExitStack() as stack:
        course = way(attack, backend, stack)
        _attack(course)
        for check in checks:
            check.attack_ran()
        _save(course)
        _follow(course)
        _require_alive(course)
        course.end()
    for check in checks:
        if failure := check.failure():
            course.fail(f"{type(check).__name__}: {failure}")
    course.verdict.seconds = round(time.perf_counter() - started, 2)
    return course.verdict


def skip_reason(attack: Attack, backend: str) -> str | None:
    """Why an entry says nothing here: another machine's system calls, a module not there."""
    if not fits_machine(attack):
        return f"for {attack.arch}, and this is {platform.machine()}"
    image = variants.image_in_use()
    missing = [name for name in attack.needs if not _importable(name, backend, image)]
    return f"the guest's Python has no {', '.join(missing)}" if missing else None


def fits_machine(attack: Attack) -> bool:
    """Whether an attack is for any machine, or for this one's processor."""
    return attack.arch in (None, platform.machine())


def unsupported(step: Step, capabilities: frozenset[Capability]) -> bool:
    """Whether a backend of these capabilities cannot run this kind of step."""
    needed = {"restore": Capability.SAVE, "upload": Capability.WORKSPACE}.get(step.kind)
    return needed is not None and needed not in capabilities


@functools.cache
def _neighbour(backend: str, _image: str | None) -> SyncSandbox:
    """A sandbox that lives beside all the attacked ones of this process."""
    shared_boxes.kept.append(backend)
    return atoll.create_sandbox(backend=backend)


@functools.cache
def _importable(module: str, backend: str, _image: str | None) -> bool:
    with atoll.create_sandbox(backend=backend) as box:
        return box.execute(f"import {module}").success


def _attack(course: Run) -> None:
    attack = course.attack
    result = course.execute(course.box, attack.code, "attack")
    if result is None:
        return
    _require_ending(course, result)
    if attack.expect_kind == "error" and result.success:
        course.fail(f"it must not be a success: {result}")
    if attack.expect_stdout is not None and attack.expect_stdout not in result.stdout:
        course.fail(f"stdout has no {attack.expect_stdout!r}: {str(result)[:500]}")
    if attack.category == "protocol" and "FORGED" in f"{result.value!r}{result.error}":
        course.fail("a forged answer was taken for the guest's")
    if attack.category == "files":
        _collect(course)
        if result.files:
            _require_regular(course, result)


def _require_ending(course: Run, result: SandboxResult) -> None:
    """It ends as it is recorded to: one that stops at a NameError has a typo and attacks nothing."""
    error = f" {result.error_type}" if result.kind == "error" else ""
    course.verdict.ending = f"{result.kind}{error}"
    if course.verdict.ending not in course.endings:
        course.fail(
            f"it ended with {course.verdict.ending!r} instead of {course.endings}: {result.error}"
        )


def _require_regular(course: Run, result: SandboxResult) -> None:
    """What a result reports must be files, not links to somewhere else."""
    names = [*result.files, *(one.path for one in result.artifacts)]
    code = f"import os, stat\nprint([n for n in {names[:500]!r} if os.path.islink('/app/' + n)])"
    answer = course.execute(course.box, code, "links")
    if answer is not None and answer.stdout.strip() not in ("[]", ""):
        course.fail(f"links are reported as files: {answer.stdout}")


def _save(course: Run) -> None:
    """Save the attacked session. Attacks on states may make that fail: in words, and in time."""
    wanted = any(step.kind == "restore" for step in course.attack.then)
    if wanted or course.attack.category == "state":
        if Capability.SAVE not in course.box.capabilities:
            return
        course.state = _in_words(course, "save", course.box.save)


def _in_words(course: Run, what: str, work: Callable[[], T]) -> T | None:
    """What `work` returns, or None if it was refused as it may be."""
    started = time.perf_counter()
    try:
        return work()
    except atoll.StateError as exc:
        if course.attack.category != "state" or not str(exc):
            course.fail(f"{what}: {exc}")
    except Exception as exc:
        course.fail(f"{what}: the host raised {type(exc).__name__}: {str(exc)[:200]}")
    finally:
        if time.perf_counter() - started > course.limit_s + STATE_PATIENCE_S:
            course.fail(f"{what}: it took {time.perf_counter() - started:.0f} s")
    return None


def _follow(course: Run) -> None:
    for step in course.attack.then:
        if unsupported(step, course.box.capabilities):
            course.verdict.not_supported.append(step.session)
        elif step.kind == "restore":
            _restore(course, step)
        elif step.kind == "upload":
            _upload(course, step)
        else:
            box = course.box if step.kind == "same" else course.open()
            course.execute(box, step.code, f"then {step.session}")
    if course.attack.compare and len(set(course.outputs)) < len(course.outputs):
        course.fail(f"{course.attack.compare}: {course.outputs}")


def _restore(course: Run, step: Step) -> None:
    """Go on in a new session. What was restored works, but for what the state says it lacks."""
    if (blob := course.state) is None:
        return
    box = _in_words(course, "restore", lambda: course.open(state=blob))
    if box is None:
        return
    result = course.execute(box, step.code, f"then {step.session}")
    if result is not None and not result.success and not atoll.describe_state(blob).left_out:
        course.fail(f"then {step.session}: {result.error}")


def _upload(course: Run, step: Step) -> None:
    """Put a file where the attack has prepared something: it is put there, or refused."""
    name = step.session.partition(":")[2]
    try:
        (result,) = course.box.files.upload([(name, b"from the host")])
        (back,) = course.box.files.download([name])
    except Exception as exc:
        course.fail(f"then {step.session}: the host raised {type(exc).__name__}: {exc}")
        return
    if result.error is None and back.content != b"from the host":
        course.fail(f"then {step.session}: it came back as {back}")
    course.execute(course.box, step.code, f"then {step.session}")


def _collect(course: Run) -> None:
    """Take everything that the guest has made, as a caller would: no canary may be in it."""
    if Capability.WORKSPACE not in course.box.capabilities:
        return
    files = course.box.files
    try:
        names = [info.path for info in files.glob("**") if info.size < MOST_COLLECTED][:200]
        seen = repr([files.ls(), files.download(names), [files.read(one) for one in names[:20]]])
        seen += repr(files.grep("a"))
    except Exception as exc:
        course.fail(f"its files: the host raised {type(exc).__name__}: {str(exc)[:200]}")
        return
    if canaries.MARK in seen and canaries.MARK not in course.attack.code:
        at = seen.index(canaries.MARK)
        course.fail(f"its files: {seen[max(0, at - 40) : at + 120]!r}")


def _require_alive(course: Run) -> None:
    if _alive(course):
        return
    if course.attack.category in MAY_NEED_RESTART:
        course.verdict.restarted = True
        course.box.initialize()
        if _alive(course):
            return
    course.fail(f"the next execution does not work: {course.outputs[-1:]}")


def _alive(course: Run) -> bool:
    result = course.execute(course.box, ALIVE, "next execution")
    for _ in range(OWN_INTERRUPTS):
        if result is None or result.error_type != "KeyboardInterrupt":
            break  # else a process of the guest's own still interrupts it, as it would any Python
        result = course.execute(course.box, ALIVE, "next execution")
    return result is not None and "alive 42" in result.stdout


def main() -> int:
    """Run a corpus, or a part of it; a line of JSON an entry; exit code 1 if one got through."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="native")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--sample", action="store_true", help="some of every category")
    parser.add_argument("--part", default="1/1", help="which part of how many")
    parser.add_argument("--only", nargs="*", help="ids to run")
    options = parser.parse_args()
    held = True
    parked.most = 0  # one that waits for the next attack would be taken for one that is left
    with own_temporary_folder(), _daemon_for(options.backend):
        for attack in _selected(options):
            verdict = run(attack, options.backend)
            held = held and verdict.held
            print(json.dumps(dataclasses.asdict(verdict)) if options.json else verdict, flush=True)
    return 0 if held else 1


@contextmanager
def own_temporary_folder() -> Iterator[None]:
    """Temporary files of this process, and of its daemon, lie apart from those of others."""
    with tempfile.TemporaryDirectory(prefix="atoll-test-") as folder:
        os.chmod(folder, 0o755)
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        try:
            yield
        finally:
            del os.environ["TMPDIR"]
            tempfile.tempdir = None


def _daemon_for(case: str) -> AbstractContextManager[None]:
    return _own_daemon() if variants.backend_of(case) == "daemon" else nullcontext()


@contextmanager
def _own_daemon() -> Iterator[None]:
    """A daemon for this run alone, which ends with it."""
    with tempfile.TemporaryDirectory() as folder:
        place = DaemonPaths(Path(folder) / "own.sock")
        os.environ["ATOLL_DAEMON_SOCKET"] = str(place.socket)
        lifecycle.start(place, DaemonLimits())
        try:
            yield
        finally:
            lifecycle.stop(place)


def _selected(options: argparse.Namespace) -> list[Attack]:
    part, of = map(int, options.part.split("/"))
    found = corpus.for_backend(variants.backend_of(options.backend))
    if options.sample:
        found = corpus.sample(found)
    if options.only:
        found = tuple(one for one in found if one.id in options.only)
    return list(found[part - 1 :: of])


if __name__ == "__main__":
    sys.exit(main())
