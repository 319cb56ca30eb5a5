"""The self-check of `atoll doctor --attack`: attacks on this host's own sandboxes, and a report."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Self, TextIO

from atoll import aio
from atoll.backends import registry
from atoll.errors import AtollError
from atoll.policy import MIB, ExecutionPolicy, Isolation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.agent.trajectory.terminal_text import Colours
    from atoll.config import SandboxConfig
    from atoll.sandbox.base import BaseSandbox
    from atoll.types import SandboxResult

PATIENCE_MS = 10_000
END_LOOKS = 250
_HEADER = re.compile(r"^### ([\w-]+) \| ([\w ]+) \| (.+?)(?: \| (\d+) ms)?\n", re.MULTILINE)
_LATER = "### then, in another sandbox\n"
MARK = "PWNED"
ENVIRONMENT_NAME = "ATOLL_SELFCHECK_SECRET"
_DECOY = "import sys; print(flush=True); sys.stdin.read()"
OUTPUT_LIMIT = 1_000_000
SMALL = ExecutionPolicy(memory_bytes=256 * MIB, disk_bytes=64 * MIB, max_processes=32)
PRIVATE = (
    "etc/shadow",
    *(f"{name}/*" for name in "root home var/log run var/run srv boot".split()),
)
"""Patterns of the paths that the attack `private-files` looks for."""
_PROBE, _PROBE_ANSWER = "print(6 * 7)", "42\n"


async def run(
    config: SandboxConfig, attacks: list[Attack], report: AttackReport
) -> list[AttackResult]:
    """Run each attack in a sandbox of its own."""
    config, level = await _prepare(config)
    report.heading(config.backend, level, len(attacks))
    results = []
    async with Canaries(await asyncio.to_thread(_image_files, config.image)) as canaries:
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
    await _processes_end(canaries)
    note = _outside(canaries) or note
    return AttackResult(
        name=attack.name, category=attack.category, claim=attack.claim, held=not note, note=note
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


def _image_files(image: str | None) -> list[str]:
    """Return what an image has in PRIVATE folders: its own files are not the host's secrets."""
    if image is None:
        return []
    from atoll.images import get_image  # noqa: PLC0415 - most sandboxes have no image

    held = get_image(image)
    try:
        return [
            f"/{path.relative_to(layer)}"
            for layer in held.image.layers
            for pattern in PRIVATE
            for path in layer.glob(pattern)
        ]
    finally:
        held.close()


async def _inside(config: SandboxConfig, attack: Attack, canaries: Canaries) -> str:
    """What went wrong as the caller of the sandbox sees it; nothing if it held."""
    async with aio.create_sandbox(config) as box:
        note = await _attempt(box, attack.code, attack, canaries) or await _aftermath(box)
    if attack.then and not note:
        async with aio.create_sandbox(config) as other:
            note = await _attempt(other, attack.then, attack, canaries)
    return note


async def _processes_end(canaries: Canaries) -> None:
    """Wait a moment for processes of the attack: a daemon ends a jail after it has answered."""
    for _ in range(END_LOOKS):
        if not canaries.processes():
            break
        await asyncio.sleep(0.02)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack: code that calls `won` if it succeeded."""

    name: str
    category: str
    claim: str
    code: str
    then: str = ""
    """Code to run in another sandbox afterwards."""
    timeout_ms: int = PATIENCE_MS


def load() -> list[Attack]:
    """Return the attacks in attacks.txt."""
    text = resources.files("atoll.cli.selfcheck").joinpath("attacks.txt").read_text("utf-8")
    _, *parts = _HEADER.split(text)
    return [_attack(*parts[at : at + 5]) for at in range(0, len(parts), 5)]


def _attack(name: str, category: str, claim: str, limit: str | None, body: str) -> Attack:
    code, _, then = body.partition(_LATER)
    timeout = int(limit) if limit else PATIENCE_MS
    return Attack(
        name=name, category=category, claim=claim, code=code, then=then, timeout_ms=timeout
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult:
    """Whether an attack was held, and what it got if not."""

    name: str
    category: str
    claim: str
    held: bool
    note: str = ""


class AttackReport:
    """Prints each result as it arrives, and on a terminal the attack that is running."""

    def __init__(self, stream: TextIO, colours: Colours, *, quiet: bool) -> None:
        self._stream, self._colours, self._quiet = stream, colours, quiet
        self._live = stream.isatty() and not quiet

    def heading(self, backend: str, isolation: Isolation, count: int) -> None:
        """Print which backend is attacked."""
        self._print(f"\n{count} attacks on {backend}, {isolation}")

    def begin(self, attack: Attack) -> None:
        """Show that an attack is running."""
        if self._live:
            self._stream.write(f"  ...          {attack.name}: {attack.claim}"[: _columns()])
            self._stream.flush()

    def end(self, result: AttackResult) -> None:
        """Print the result of an attack."""
        held = (
            self._colours.good("held       ") if result.held else self._colours.bad("GOT THROUGH")
        )
        note = f" ({result.note})" if result.note else ""
        start = "\r\x1b[K" if self._live else ""
        self._print(f"{start}  {held}  {result.category:<10} {result.claim}{note}")

    def total(self, results: list[AttackResult]) -> None:
        """Print how many attacks were held."""
        held = sum(result.held for result in results)
        text = f"{held} of {len(results)} held"
        self._print(self._colours.good(text) if held == len(results) else self._colours.bad(text))

    def _print(self, text: str) -> None:
        if not self._quiet:
            print(text, file=self._stream, flush=True)


def _columns() -> int:
    return shutil.get_terminal_size().columns - 1


class Canaries:
    """Secrets in a file, an environment, a TCP port and a Unix socket; use it in `async with`."""

    def __init__(self, image_files: Sequence[str] = ()) -> None:
        """`image_files`: what the sandbox's image has itself where attacks look for secrets."""
        self._image_files = list(image_files)
        self.secret = f"{MARK}-{secrets.token_hex(8)}"
        self.label = f"atoll-selfcheck-{secrets.token_hex(8)}"
        self._folder = tempfile.TemporaryDirectory(prefix="atoll-selfcheck-")
        self.outside = Path(self._folder.name, "outside")
        self._servers: list[asyncio.Server] = []
        self._port = 0

    def prelude(self) -> str:
        """Return a first cell: where the canaries are, and `won`, which a successful attack calls.

        The mark is assembled at run time, so that no traceback can show it by quoting code.
        """
        names = {
            "SECRET_FILE": str(Path(self._folder.name, "secret")),
            "SECRET_NAME": ENVIRONMENT_NAME,
            "SECRET_TAIL": self.secret.removeprefix(MARK),
            "PORT": self._port,
            "ABSTRACT": "\0" + self.label,
            "LABEL": self.label,
            "OUTSIDE": str(self.outside),
            "IMAGE_FILES": self._image_files,
        }
        lines = [f"{name} = {value!r}" for name, value in names.items()]
        return "\n".join([*lines, "def won(*what): print('PWN' + 'ED', *what, flush=True)"])

    def take_files(self) -> list[str]:
        """Remove the files that attacks created outside, and return their names."""
        paths = sorted(self.outside.iterdir())
        for path in paths:
            path.unlink()
        return [path.name for path in paths]

    def end_processes(self) -> list[int]:
        """Kill host processes with the label in their command line, and return their pids."""
        for pid in (pids := self.processes()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        return pids

    def processes(self) -> list[int]:
        """Return the host processes with the label in their command line."""
        return [
            int(folder.name) for folder in Path("/proc").glob("[0-9]*") if self._is_ours(folder)
        ]

    def _is_ours(self, folder: Path) -> bool:
        try:
            return self.label.encode() in (folder / "cmdline").read_bytes()
        except OSError:
            return False

    async def __aenter__(self) -> Self:
        self._plant_files()
        os.environ[ENVIRONMENT_NAME] = self.secret
        self._decoy = await asyncio.to_thread(_start_decoy)
        tcp = await asyncio.start_server(self._serve_secret, "127.0.0.1", 0)
        self._port = tcp.sockets[0].getsockname()[1]
        unix = await asyncio.start_unix_server(self._serve_secret, "\0" + self.label)
        self._servers = [tcp, unix]
        return self

    async def __aexit__(self, *_exc: object) -> None:
        os.environ.pop(ENVIRONMENT_NAME, None)
        for server in self._servers:
            server.close()
        self._decoy.communicate()
        self._folder.cleanup()

    def _plant_files(self) -> None:
        """Write files that every user may read, so that only the backend protects them."""
        folder = Path(self._folder.name)
        folder.chmod(0o755)
        (folder / "secret").write_text(self.secret)
        (folder / "secret").chmod(0o644)
        self.outside.mkdir()
        self.outside.chmod(0o777)

    async def _serve_secret(
        self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(self.secret.encode())
        writer.close()


def _start_decoy() -> subprocess.Popen[bytes]:
    """Start a process with the secret in its environment, which /proc would show.

    It has a session of its own, so that Ctrl-C at the terminal does not reach it.
    """
    decoy = subprocess.Popen(
        [sys.executable, "-S", "-c", _DECOY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert decoy.stdout is not None
    decoy.stdout.readline()
    return decoy
