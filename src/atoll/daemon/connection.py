"""One client's connection: the sessions that it may name, and what becomes of them at its end."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from atoll.errors import BusyError, ConfigError, SandboxClosedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.hosting.sessions import Session
    from atoll.rpc.connection import Peer

MAX_NAME = 64


class Connection:
    """A client. Names of sessions are its own, and mean nothing to another one."""

    def __init__(self, most_sessions: int) -> None:
        self._most_sessions = most_sessions
        self._sessions: dict[str, Session] = {}
        self._reserved: set[str] = set()
        self.peer: Peer

    def knows(self, name: Any) -> bool:
        """Return whether a session of that name is open."""
        return isinstance(name, str) and name in self._sessions

    def session(self, name: object) -> tuple[str, Session]:
        """Return the session that a request names."""
        if not isinstance(name, str) or name not in self._sessions:
            raise SandboxClosedError("this connection has no such session")
        return name, self._sessions[name]

    @contextlib.contextmanager
    def room_for(self, name: Any) -> Iterator[str]:
        """Around the opening of a session; BusyError if there are too many already."""
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
            raise ConfigError(f"a session's name is a text of at most {MAX_NAME} characters")
        if name in self._sessions or name in self._reserved:
            raise ConfigError("a session of that name is open already")
        if len(self._sessions) + len(self._reserved) >= self._most_sessions:
            raise BusyError(f"one connection may have {self._most_sessions} sessions")
        self._reserved.add(name)
        try:
            yield name
        finally:
            self._reserved.discard(name)

    def add(self, name: str, session: Session) -> None:
        """Give a session its name on this connection."""
        self._sessions[name] = session

    def remove(self, name: str) -> None:
        """Forget a session."""
        self._sessions.pop(name, None)

    def remove_all(self) -> list[Session]:
        """Forget every session: which ones there were."""
        sessions = list(self._sessions.values())
        self._sessions.clear()
        return sessions
