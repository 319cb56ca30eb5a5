"""Runs attacks against a backend and judges each: held, or got through; `atoll doctor --attack`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from atoll import aio
from atoll.backends import registry
from atoll.cli.bait import MARK, Bait
from atoll.cli.scoreboard import Verdict
from atoll.errors import AtollError
from atoll.policy import MIB, ExecutionPolicy, Isolation

if TYPE_CHECKING:
    from atoll.cli.attacks import Attack
    from atoll.cli.scoreboard import Show
    from atoll.config import REPLConfig
    from atoll.sandbox import BaseSandbox
    from atoll.types import SandboxResult

OUTPUT_LIMIT = 1_000_000
SMALL = ExecutionPolicy(memory_bytes=256 * MIB, disk_bytes=64 * MIB, max_processes=32)
_PROBE, _PROBE_ANSWER = "print(6 * 7)", "42\n"


async def run(config: REPLConfig, attacks: list[Attack], show: Show) -> list[Verdict]:
    """Run each attack in a sandbox of its own."""
    config, level = await _prepare(config)
    show.heading(config.backend, level, len(attacks))
    verdicts = []
    async with Bait() as bait:
        for attack in attacks:
            show.begin(attack)
            verdicts.append(await judge(config, attack, bait))
            show.end(verdicts[-1])
    show.total(verdicts)
    return verdicts


async def judge(config: REPLConfig, attack: Attack, bait: Bait) -> Verdict:
    """Run an attack and see what it got."""
    try:
        note = await _inside(config, attack, bait)
    except AtollError as exc:
        note = f"it broke the sandbox itself: {exc}"
    note = _outside(bait) or note
    return Verdict(
        name=attack.name,
        category=attack.category,
        claim=attack.claim,
        held=not note,
        note=note,
    )


async def _prepare(config: REPLConfig) -> tuple[REPLConfig, Isolation]:
    """The backend that will be used, with small limits: all of them that it can enforce."""
    chosen = await registry.choose(config)
    level = (await chosen.availability(config)).isolation or Isolation.NONE
    policy = SMALL if level >= Isolation.JAILED else dataclasses.replace(SMALL, disk_bytes=None)
    settings = dataclasses.replace(
        config, backend=chosen.backend, policy=policy, max_output_length=OUTPUT_LIMIT
    )
    async with aio.create_sandbox(settings):  # if it does not start at all, that is no verdict
        return settings, level


async def _inside(config: REPLConfig, attack: Attack, bait: Bait) -> str:
    """What went wrong as the caller of the sandbox sees it; nothing if it held."""
    async with aio.create_sandbox(config) as box:
        note = await _attempt(box, attack.code, attack, bait) or await _aftermath(box)
    if attack.then and not note:
        async with aio.create_sandbox(config) as other:
            note = await _attempt(other, attack.then, attack, bait)
    return note


def _outside(bait: Bait) -> str:
    """What went wrong on the host; both questions are asked, as both clean up."""
    files, processes = bait.take_files(), bait.end_processes()
    if files:
        return f"left {files[0]} on the host"
    return "a process outlived the sandbox" if processes else ""


async def _attempt(box: BaseSandbox, code: str, attack: Attack, bait: Bait) -> str:
    await box.execute(bait.prelude())
    return _leak(await box.execute(code, timeout_ms=attack.timeout_ms))


def _leak(result: SandboxResult) -> str:
    """What got out by a result."""
    texts = (result.stdout, result.stderr, result.error, result.value_repr, *result.files)
    for text in texts:
        if text and MARK in text:
            return next(line for line in text.splitlines() if MARK in line)[:100]
    if len(result.stdout) > OUTPUT_LIMIT:
        return f"{len(result.stdout):,} characters of output"
    return ""


async def _aftermath(box: BaseSandbox) -> str:
    """Whether the next execution works, and answers for itself."""
    result = await box.execute(_PROBE)
    if result.stdout == _PROBE_ANSWER and result.success and not _leak(result):
        return ""
    return f"the next execution did not work: {result.error or repr(result.stdout)}"
