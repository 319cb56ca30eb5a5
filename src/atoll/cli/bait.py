"""What the self-check plants on the host for attacks to find; selfcheck uses it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

MARK = "PWNED"
ENVIRONMENT_NAME = "ATOLL_SELFCHECK_SECRET"
_DECOY = "import sys; print(flush=True); sys.stdin.read()"


class Bait:
    """Planted in an `async with` block, and taken away after it."""

    def __init__(self) -> None:
        self.secret = f"{MARK}-{secrets.token_hex(8)}"
        self.label = f"atoll-selfcheck-{secrets.token_hex(8)}"
        self._folder = tempfile.TemporaryDirectory(prefix="atoll-selfcheck-")
        self.outside = Path(self._folder.name, "outside")
        self._servers: list[asyncio.Server] = []
        self._port = 0

    def prelude(self) -> str:
        """A first cell: where the bait is, and `won`, which an attack calls if it got through.

        The mark is put together at run time, so that no traceback can show it by quoting code.
        """
        names = {
            "SECRET_FILE": str(Path(self._folder.name, "secret")),
            "SECRET_NAME": ENVIRONMENT_NAME,
            "SECRET_TAIL": self.secret.removeprefix(MARK),
            "PORT": self._port,
            "ABSTRACT": "\0" + self.label,
            "LABEL": self.label,
            "OUTSIDE": str(self.outside),
        }
        lines = [f"{name} = {value!r}" for name, value in names.items()]
        return "\n".join([*lines, "def won(*what): print('PWN' + 'ED', *what, flush=True)"])

    def take_files(self) -> list[str]:
        """What has appeared in the folder outside; it is removed."""
        found = sorted(self.outside.iterdir())
        for path in found:
            path.unlink()
        return [path.name for path in found]

    def end_processes(self) -> list[int]:
        """Processes of this host that carry the label in their command line; they are ended."""
        found = [
            int(folder.name) for folder in Path("/proc").glob("[0-9]*") if self._is_ours(folder)
        ]
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        return found

    def _is_ours(self, folder: Path) -> bool:
        try:
            return self.label.encode() in (folder / "cmdline").read_bytes()
        except OSError:
            return False

    async def __aenter__(self) -> Self:
        self._plant_files()
        os.environ[ENVIRONMENT_NAME] = self.secret
        self._decoy = await asyncio.to_thread(_start_decoy)
        tcp = await asyncio.start_server(self._give_away, "127.0.0.1", 0)
        self._port = tcp.sockets[0].getsockname()[1]
        unix = await asyncio.start_unix_server(self._give_away, "\0" + self.label)
        self._servers = [tcp, unix]
        return self

    async def __aexit__(self, *_error: object) -> None:
        os.environ.pop(ENVIRONMENT_NAME, None)
        for server in self._servers:
            server.close()
        self._decoy.communicate()
        self._folder.cleanup()

    def _plant_files(self) -> None:
        """Open to every user of the host, so that only the backend can be in the way."""
        folder = Path(self._folder.name)
        folder.chmod(0o755)
        (folder / "secret").write_text(self.secret)
        (folder / "secret").chmod(0o644)
        self.outside.mkdir()
        self.outside.chmod(0o777)

    async def _give_away(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self.secret.encode())
        writer.close()


def _start_decoy() -> subprocess.Popen[bytes]:
    """A process that was started with the secret: /proc shows only such an environment."""
    decoy = subprocess.Popen(
        [sys.executable, "-S", "-c", _DECOY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert decoy.stdout is not None
    decoy.stdout.readline()
    return decoy
