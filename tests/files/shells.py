"""Sandboxes that can only run commands: with Python, with coreutils alone, with busybox alone."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import atoll

TOOLS = (
    "base64", "cat", "chmod", "cut", "find", "grep", "head", "mkdir", "mv", "printf", "rm", "stat",
    "tail", "tr", "wc",
)  # fmt: skip
KINDS = ("python", "dash", "busybox")


def tools(kind: str, folder: Path) -> Path:
    """A folder to have as the whole PATH."""
    folder.mkdir()
    for name in TOOLS:
        (folder / name).symlink_to(_found("busybox" if kind == "busybox" else name))
    (folder / "sh").symlink_to(_found("busybox" if kind == "busybox" else "dash"))
    if kind == "python":
        (folder / "python3").symlink_to(sys.executable)
    return folder


def _found(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not on this machine")
    return path


class Shell:
    """Runs commands as a stranger's service would: one argument of `sh -c`, all output merged."""

    def __init__(self, path: Path, cwd: Path, temporary: Path) -> None:
        self.path, self.cwd, self.temporary = path, cwd, temporary
        self.commands = 0
        self.most: int | None = None
        """Characters of output that it lets through."""
        self.noise = ""
        """A command whose output comes along."""

    def run(self, command: str) -> atoll.ExecuteResponse:
        self.commands += 1
        done = subprocess.run(
            [self.path / "sh", "-c", self.noise + command],
            cwd=self.cwd,
            env={"PATH": str(self.path), "TMPDIR": str(self.temporary)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
        )
        output = done.stdout.decode("utf-8", "replace")
        cut = self.most is not None and len(output) > self.most
        text = output[: self.most] if cut else output
        return atoll.ExecuteResponse(output=text, exit_code=done.returncode, truncated=cut)


class BlockingBox(atoll.ShellSandbox):
    id = "blocking"

    def __init__(self, shell: Shell) -> None:
        self.shell = shell

    def execute(self, command: str) -> atoll.ExecuteResponse:
        return self.shell.run(command)


class AsyncBox(atoll.aio.ShellSandbox):
    id = "async"

    def __init__(self, shell: Shell) -> None:
        self.shell = shell

    async def execute(self, command: str) -> atoll.ExecuteResponse:
        return await asyncio.to_thread(self.shell.run, command)


class Awaited:
    """An async sandbox, each of whose methods is run to its end."""

    def __init__(self, box: Any) -> None:
        self._box = box

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._box, name)
        return (
            (lambda *args, **kwargs: asyncio.run(found(*args, **kwargs)))
            if callable(found)
            else found
        )
