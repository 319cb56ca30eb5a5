"""One client's connection: the sessions that it may name, and what becomes of them at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.errors import BusyError, SandboxClosedError

if TYPE_CHECKING:
    from atoll.daemon.sessions import Session
    from atoll.wire.peer import Peer


class Connection:
    """A client. Names of sessions are its own, and mean nothing to another one."""

    def __init__(self, most_sessions: int) -> None:
        self._most_sessions = most_sessions
        self._sessions: dict[str, Session] = {}
        self._count = self._opening = 0
        self.peer: Peer

    def session(self, params: dict[str, Any]) -> tuple[str, Session]:
        """The session that a request names."""
        name = str(params.get("session"))
        if name not in self._sessions:
            raise SandboxClosedError("this connection has no such session")
        return name, self._sessions[name]

    def reserve(self) -> None:
        """Room for one more session; BusyError if there is none. `add` or `unreserve` follows."""
        if len(self._sessions) + self._opening >= self._most_sessions:
            raise BusyError(f"one connection may have {self._most_sessions} sessions")
        self._opening += 1

    def unreserve(self) -> None:
        """The session that there was to be room for has been added, or never came."""
        self._opening -= 1

    def add(self, session: Session) -> str:
        """The name of a session on this connection."""
        self._count += 1
        name = str(self._count)
        self._sessions[name] = session
        return name

    def remove(self, name: str) -> None:
        """Forget a session."""
        self._sessions.pop(name, None)

    def remove_all(self) -> list[Session]:
        """Forget every session: which ones there were."""
        sessions = list(self._sessions.values())
        self._sessions.clear()
        return sessions
