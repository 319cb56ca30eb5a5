"""`atoll serve` as a process of its own, for programs that kill it and start it again."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench import processes

READY_SECONDS = 120
ADD_KEY = """
import json, sys
from pathlib import Path
from atoll.service.access.keys import Keys, Quota
from atoll.service.storage.database import Database
print(Keys(Database(Path(sys.argv[1]))).add(quota=Quota(**json.loads(sys.argv[2]))))
"""


class Server:
    """`atoll serve` as a process, started again on the same port when it was killed."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self._folder, self._settings = folder, settings
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process: subprocess.Popen[bytes]
        self._log = (folder / "log").open("ab")
        self.start()
        self.key = self._key()

    def start(self) -> None:
        """Start it and wait until it takes work."""
        given = {f"ATOLL_SERVE_{name.upper()}": str(one) for name, one in self._settings.items()}
        arguments = ["-m", "atoll.cli.main", "serve", "--folder", self._folder, "--port", self.port]
        self.process = subprocess.Popen(
            [sys.executable, *map(str, arguments), "--tier", "bare"], env={**os.environ, **given},
            stdout=self._log, stderr=self._log, start_new_session=True,
        )  # fmt: skip
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.ask("GET", "/ready")[0] == 200:
                    return
            time.sleep(0.05)
        raise SystemExit(f"the service does not start: see {self._folder / 'log'}")

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        """Make one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        if hasattr(self, "key"):
            headers["authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body)
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def supervisor(self) -> int | None:
        """Return the process that starts jails."""
        found = processes.descendants(self.process.pid)
        return next((pid for pid in found if processes.zygote_host_and_zygote(pid)), None)

    @property
    def memory(self) -> int:
        """Bytes that the service itself holds."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0]) << 10

    def kill(self, what: str) -> bool:
        """Kill the service, its supervisor, a zygote host or a zygote; False if there is none."""
        if what == "service":
            self.process.kill()
            self.process.wait()
            self.start()
            return True
        supervisor = self.supervisor()
        pair = processes.zygote_host_and_zygote(supervisor)
        if supervisor is None or pair is None:
            return False
        victims = {"supervisor": supervisor, "zygote_host": pair[0], "zygote": pair[1]}
        try:
            os.kill(victims[what], signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def stop(self) -> int:
        """Stop it as an operator does; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)

    def _key(self) -> str:
        quota = {"requests_per_second": 1e6, "burst": 10**6, "executions": 512, "sessions": 2000}
        arguments = [sys.executable, "-c", ADD_KEY, str(self._folder), json.dumps(quota)]
        return subprocess.run(arguments, check=True, capture_output=True, text=True).stdout.strip()
