"""Runs attacks against a backend and judges each: held, or got through; `atoll doctor --attack`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from atoll import aio
from atoll.backends import registry
from atoll.cli.selfcheck.attack_report import AttackResult
from atoll.cli.selfcheck.canaries import MARK, Canaries
from atoll.errors import AtollError
from atoll.policy import MIB, ExecutionPolicy, Isolation

if TYPE_CHECKING:
    from atoll.cli.selfcheck.attack_report import AttackReport
    from atoll.cli.selfcheck.attacks import Attack
    from atoll.config import SandboxConfig
    from atoll.sandbox.base import BaseSandbox
    from atoll.types import SandboxResult

OUTPUT_LIMIT = 1_000_000
SMALL = ExecutionPolicy(memory_bytes=256 * MIB, disk_bytes=64 * MIB, max_processes=32)
_PROBE, _PROBE_ANSWER = "print(6 * 7)", "42\n"


async def run(
    config: SandboxConfig, attacks: list[Attack], report: AttackReport
) -> list[AttackResult]:
    """Run each attack in a sandbox of its own."""
    config, level = await _prepare(config)
    report.heading(config.backend, level, len(attacks))
    results = []
    async with Canaries() as canaries:
        for attack in attacks:
            report.begin(attack)
            results.append(await judge(config, attack, canaries))
            report.end(results[-1])
    report.total(results)
    return results


async def judge(config: SandboxConfig, attack: Attack, canaries: Canaries) -> AttackResult:
    """Run an attack and see what it got."""
    try:
        note = await _inside(config, attack, canaries)
    except AtollError as exc:
        note = f"it broke the sandbox itself: {exc}"
    note = _outside(canaries) or note
    return AttackResult(
        name=attack.name,
        category=attack.category,
        claim=attack.claim,
        held=not note,
        note=note,
    )


async def _prepare(config: SandboxConfig) -> tuple[SandboxConfig, Isolation]:
    """The backend that will be used, with small limits: all of them that it can enforce."""
    chosen = await registry.choose(config)
    level = (await chosen.availability(config)).isolation or Isolation.NONE
    unlimited = dataclasses.replace(SMALL, disk_bytes=None, max_processes=None)
    policy = SMALL if level >= Isolation.JAILED else unlimited
    settings = dataclasses.replace(
        config, backend=chosen.backend, policy=policy, max_output_length=OUTPUT_LIMIT
    )
    async with aio.create_sandbox(settings):  # if it does not start at all, that is no result
        return settings, level


async def _inside(config: SandboxConfig, attack: Attack, canaries: Canaries) -> str:
    """What went wrong as the caller of the sandbox sees it; nothing if it held."""
    async with aio.create_sandbox(config) as box:
        note = await _attempt(box, attack.code, attack, canaries) or await _aftermath(box)
    if attack.then and not note:
        async with aio.create_sandbox(config) as other:
            note = await _attempt(other, attack.then, attack, canaries)
    return note


def _outside(canaries: Canaries) -> str:
    """What went wrong on the host; both questions are asked, as both clean up."""
    files, processes = canaries.take_files(), canaries.end_processes()
    if files:
        return f"left {files[0]} on the host"
    return "a process outlived the sandbox" if processes else ""


async def _attempt(box: BaseSandbox, code: str, attack: Attack, canaries: Canaries) -> str:
    await box.execute(canaries.prelude())
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
