"""What a zygote prepares for its forks: specialised code, no hooks, random numbers of their own.

Libraries register functions that reset locks and threads after a fork. A zygote has one thread and
holds no lock, so they change nothing in its guests, but copy a hundred pages and more in each.

The steps of a forked guest are rehearsed in the zygote, without their system calls: the interpreter
specialises code that has run a few times. Specialised code reads fewer objects, so a guest that
runs it counts fewer references, and copies fewer of the pages that it shares with its zygote.
SECURITY: the zygote is privileged and single-threaded; every function by which a step could change
something does nothing meanwhile.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import contextlib
import ctypes
import os
import resource
import sys
from typing import TYPE_CHECKING, Any

from atoll.guest.core import private
from atoll.jail.walls import syscalls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Hook = Callable[[], object]

TIMES = 32
"""More than the interpreter takes to specialise code."""
_EFFECTS: tuple[tuple[Any, str], ...] = (
    (os, "chdir chroot close dup2 fchdir open pidfd_open setgroups"),
    (os, "setresgid setresuid setsid write"),
    (resource, "setrlimit"),
    (_signal, "set_wakeup_fd signal"),
    (syscalls, "_capset _mount _prctl _setns _syscall _syscall_of_numbers _unshare"),
)
"""Every function of these modules that the steps change something with."""
LEFT_OUT = frozenset({"threading", "logging", "concurrent.futures.thread", "random"})
"""Modules whose functions only reset locks and threads, and the one that guests reseed otherwise:
see random_reseeder. Others run theirs."""
_TWISTER_WORDS = 624
_register = os.register_at_fork


def rehearse(work: Callable[[], object]) -> None:
    """Run `work` a few times; its system calls return 0 and have no effect."""
    with _without_effects():
        for _ in range(TIMES):
            work()


@contextlib.contextmanager
def _without_effects() -> Iterator[None]:
    places = [
        (vars(copy), name)
        for module, names in _EFFECTS
        for copy in (module, *private.copies_of(module))
        for name in names.split()
    ]
    real = [names[name] for names, name in places]
    try:
        for names, name in places:
            names[name] = _do_nothing
        yield
    finally:
        for (names, name), function in zip(places, real, strict=True):
            names[name] = function


def _do_nothing(*_args: object, **_named: object) -> int:
    return 0


class LibraryHooks:
    """Collects the fork hooks of LEFT_OUT; they run at every fork but the zygote's own."""

    def __init__(self) -> None:
        self._before: list[Hook] = []
        self._in_parent: list[Hook] = []
        self._in_child: list[Hook] = []
        self._asleep = self._registered = self._in_zygote = False

    def collect(self) -> None:
        """Take the hooks that modules register from now on, until `sleep`."""
        os.register_at_fork = self._take

    def sleep(self) -> None:
        """Run none until `wake`: the zygote is about to serve."""
        os.register_at_fork = _register
        self._asleep = True

    def rehearse(self) -> None:
        """Do what a child of the zygote does, so that it finds the code specialised."""
        for _ in range(TIMES):
            self._run_in_child()

    def wake(self) -> None:
        """Run them at each fork: guest code may have threads and hold locks."""
        self._asleep = False

    def _run(self, hooks: list[Hook]) -> None:
        if not self._asleep:
            for hook in hooks:
                hook()

    def _take(
        self,
        *,
        before: Hook | None = None,
        after_in_parent: Hook | None = None,
        after_in_child: Hook | None = None,
    ) -> None:
        """Stand in for os.register_at_fork."""
        given: dict[str, Any] = {
            "before": before,
            "after_in_parent": after_in_parent,
            "after_in_child": after_in_child,
        }
        caller = sys._getframe(1).f_globals.get("__name__")  # noqa: SLF001 - who registers
        if caller not in LEFT_OUT:
            _register(**{name: hook for name, hook in given.items() if hook is not None})
            return
        self._register_once(child_only=before is None and after_in_parent is None)
        self._before[:0] = [before] if before else []  # what was registered last runs first
        self._in_parent += [after_in_parent] if after_in_parent else []
        self._in_child += [after_in_child] if after_in_child else []

    def _register_once(self, *, child_only: bool) -> None:
        """Register what runs the hooks; what the zygote itself would run only if there is some."""
        if not self._registered:
            self._registered = True
            _register(after_in_child=self._run_in_child)
        if not child_only and not self._in_zygote:
            self._in_zygote = True
            _register(
                before=lambda: self._run(self._before),
                after_in_parent=lambda: self._run(self._in_parent),
            )

    def _run_in_child(self) -> None:
        self._run(self._in_child)


def random_reseeder() -> Hook:
    """Return a function that reseeds `random` in a forked guest, without the code of its hook."""
    random: Any = sys.modules["random"]
    random.seed()  # which resets what the C function does not reset
    return super(random.Random, random.seed.__self__).seed  # type: ignore[no-any-return]


def numpy_reseeder() -> Hook:
    """Return a function that gives numpy's global generator a random state, in a forked guest.

    It writes the state of the Mersenne Twister, where that lies in memory as expected:
    numpy.random.seed() would copy a hundred pages.
    """
    random = sys.modules["numpy"].random
    random.seed()
    try:
        address = random.get_bit_generator().ctypes.state_address
        words = (ctypes.c_uint32 * (_TWISTER_WORDS + 1)).from_address(address)
        name, key, position, *_ = random.get_state()
    except (AttributeError, TypeError, ValueError):  # a numpy before 1.24
        return random.seed  # type: ignore[no-any-return]
    if (name, [*words]) != ("MT19937", [*key.tolist(), position]):
        return random.seed  # type: ignore[no-any-return]
    words[_TWISTER_WORDS] = _TWISTER_WORDS  # all are used up: the next draw makes new ones
    state = memoryview(words).cast("B")[: 4 * _TWISTER_WORDS]

    def reseed() -> None:
        state[:] = os.urandom(4 * _TWISTER_WORDS)

    return reseed
