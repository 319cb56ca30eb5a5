"""Clients of a service under test."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx2
from own_service import OwnService


class Api(httpx2.Client):
    """A client with a key; paths are below /api/v1 unless they begin with another root."""

    def __init__(self, service: OwnService, key: str) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        super().__init__(base_url=service.url, headers=headers, timeout=60, trust_env=False)
        self.service = service

    def session(self, **body: Any) -> str:
        made = self.post("/api/v1/sessions", json=body)
        assert made.status_code == 201, made.text
        return f"/api/v1/sessions/{made.json()['id']}"

    def run(self, session: str, code: str, **body: Any) -> dict[str, Any]:
        done = self.post(f"{session}/executions", json={"code": code, **body})
        assert done.status_code == 200, done.text
        return done.json()

    def events(self, path: str, body: Any, **headers: str) -> list[dict[str, Any]]:
        headers = {"accept": "application/x-ndjson", **headers}
        done = self.post(path, json=body, headers=headers)
        return [json.loads(line) for line in done.content.split(b"\n") if line]


def connect(service: OwnService, *, buffer: int | None = None) -> socket.socket:
    """A plain connection, for what no client would send; `buffer` bytes wait unread."""
    host, port = service.url.removeprefix("http://").split(":")
    sock = socket.socket()
    sock.settimeout(30)
    if buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    sock.connect((host, int(port)))
    return sock
