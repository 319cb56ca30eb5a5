"""Canaries that the self-check places on the host: secrets that an attack must not reach."""

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


class Canaries:
    """Secrets in a file, an environment, a TCP port and a Unix socket; use it in `async with`."""

    def __init__(self) -> None:
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
        }
        lines = [f"{name} = {value!r}" for name, value in names.items()]
        return "\n".join([*lines, "def won(*what): print('PWN' + 'ED', *what, flush=True)"])

    def take_files(self) -> list[str]:
        """Remove the files that attacks created outside, and return their names."""
        found = sorted(self.outside.iterdir())
        for path in found:
            path.unlink()
        return [path.name for path in found]

    def end_processes(self) -> list[int]:
        """Kill host processes with the label in their command line, and return their pids."""
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
