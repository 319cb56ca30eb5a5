"""A server on loopback that says what it is told to, and fetchers that may reach it alone."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from atoll.agent.web import Fetcher, WebPolicy

HOST = "docs.example.org"


class Server:
    """Answers each path with bytes, or by a function of the connection; counts what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes | Callable[[socket.socket], None]] = {}
        self.requests: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def url(self, path: str = "/", host: str = HOST) -> str:
        return f"http://{host}:{self.port}{path}"

    def page(
        self,
        path: str,
        body: bytes,
        kind: str = "text/plain",
        status: str = "200 OK",
        **headers: str,
    ) -> str:
        """Serve this; its URL."""
        more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
        self.answers[path] = head.encode() + body
        return self.url(path)

    def redirect(self, path: str, location: str) -> str:
        return self.page(path, b"", status="302 Found", Location=location)

    def close(self) -> None:
        self._stop.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for thread in self._threads:
            thread.join(10)

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                line, _ = self._socket.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._answer, args=(line,)))
            self._threads[-1].start()

    def _answer(self, line: socket.socket) -> None:
        line.settimeout(10)
        with line:
            try:
                request = b""
                while b"\r\n\r\n" not in request and (piece := line.recv(65536)):
                    request += piece
                    if request[:1] == b"\x16":  # TLS: its first words are all we want
                        break
                self.requests.append(request.decode("latin-1"))
                path = request.split(b" ")[1].decode() if b" " in request[:10] else "tls"
                answer = self.answers.get(
                    path,
                    b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\nnone",
                )
                line.sendall(answer) if isinstance(answer, bytes) else answer(line)
            except OSError:
                pass

    @property
    def stopping(self) -> threading.Event:
        return self._stop


def pointing_to(*addresses: str) -> Callable[..., list]:
    """A resolver that gives these for any name."""

    def resolve(_host: str, port: int, *_args: int) -> list:
        return [
            (socket.AF_INET6, 1, 6, "", (one, port, 0, 0))
            if ":" in one
            else (socket.AF_INET, 1, 6, "", (one, port))
            for one in addresses
        ]

    return resolve


def fetcher(server: Server, resolver=None, **policy) -> Fetcher:
    """One that may reach loopback, and nothing else that is private."""
    given = {
        "allow": (HOST, "*.example.net"),
        "ports": (server.port,),
        "dangerous_networks": ("127.0.0.1/32",),
    }
    return Fetcher(WebPolicy(**given | policy), resolver=resolver or pointing_to("127.0.0.1"))
