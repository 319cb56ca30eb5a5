"""Checks requests against the policy, counts them and their bytes against its limits."""

from __future__ import annotations

import asyncio
import fnmatch
import inspect
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import unquote

from atoll.errors import AtollError
from atoll.network import HostRule, NetworkSpent, NetworkUse

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from atoll.network import NetworkPolicy, NetworkRequest, OnRequest

_SHOWN_HOSTS = 8
_NEVER = ("TRACE", "TRACK")
"""Methods that echo a request, its credentials included."""
MAX_LISTED = 1000
"""Most requests in the result of one execution."""
PATH_LENGTH = 500


class RefusedError(AtollError):
    """The policy refuses a request; `status` is the HTTP status of the response."""

    word = "NetworkNotAllowed"

    def __init__(self, reason: str, status: int = 403) -> None:
        self.reason, self.status = reason, status
        super().__init__(f"{self.word}: {reason}")

    def cleaned(self, clean: Callable[[str], str]) -> RefusedError:
        """Return the same refusal with another text."""
        return type(self)(clean(self.reason), self.status)


class UnreachableError(RefusedError):
    """The policy allows a request, but its server is down or sends no valid response."""

    word = "NetworkUnreachable"

    def __init__(self, reason: str, status: int = 502) -> None:
        super().__init__(reason, status)


class Rules:
    """Checks requests against a policy."""

    def __init__(self, policy: NetworkPolicy) -> None:
        self.policy = policy
        self._allow = [HostRule.parse(host) for host in policy.allow]
        self._deny = [HostRule.parse(host) for host in policy.deny]
        self._headers = [(HostRule.parse(host), added) for host, added in policy.headers.items()]

    def check(self, asked: NetworkRequest) -> None:
        """Raise RefusedError unless host, port, method and path are allowed."""
        self._check_host(asked)
        if asked.method == "CONNECT":
            self._check_unread(asked)
            return
        if asked.method.upper() in _NEVER:
            raise RefusedError(f"the method {asked.method} is never allowed")
        methods, paths = self.policy.methods, self.policy.paths
        if methods is not None and asked.method not in methods:
            allowed = ", ".join(methods)
            raise RefusedError(f"this sandbox may use {allowed}; asked for {asked.method[:40]}")
        if paths is not None and not _path_allowed(asked.path, paths):
            raise RefusedError(
                f"this sandbox may ask for the paths {', '.join(paths)}; asked for "
                f"{asked.path[:200]}"
            )

    async def decide(
        self, asked: NetworkRequest, on_request: OnRequest | None, threads: Executor
    ) -> None:
        """Call the caller's function; RefusedError with its reason if it refuses."""
        if on_request is None:
            return
        try:
            if inspect.iscoroutinefunction(on_request):
                answer = await on_request(asked)
            else:
                loop = asyncio.get_running_loop()
                answer = await loop.run_in_executor(threads, on_request, asked)
            if inspect.isawaitable(answer):
                answer = await answer
        except Exception as exc:  # a function of the caller's: its failure allows nothing
            raise RefusedError("on_request failed, so the request is refused") from exc
        if answer is False or isinstance(answer, str):
            why = f": {answer[:500]}" if isinstance(answer, str) else ""
            raise RefusedError(f"the host refused {asked.place}{why}")

    def named_address(self, host: str) -> bool:
        """Return whether the policy names this address or localhost: then it may be private.

        SECURITY: a name never has this right: it could be resolved to any address.
        """
        own = [rule for rule in self._allow if rule.address is not None or rule.host == "localhost"]
        return any(rule.host == host for rule in own)

    @property
    def names_loopback(self) -> bool:
        """Whether an address of the host's loopback is allowed."""
        return any(
            rule.host == "localhost" or (rule.address is not None and rule.address.is_loopback)
            for rule in self._allow
        )

    def added_headers(self, asked: NetworkRequest) -> dict[str, str]:
        """Return the headers to add. SECURITY: to plain http only if its port is named."""
        headers: dict[str, str] = {}
        for rule, added in self._headers:
            fits = asked.scheme == "https" if rule.port is None else rule.port == asked.port
            if fits and rule.host == asked.host:
                headers |= added
        return headers

    @property
    def summary(self) -> str:
        """The allowed hosts, for messages: `a.example:443, *.b.example`."""
        hosts = [str(rule) for rule in self._allow]
        more = f" and {len(hosts) - _SHOWN_HOSTS} more" if len(hosts) > _SHOWN_HOSTS else ""
        return ", ".join(hosts[:_SHOWN_HOSTS]) + more

    def _check_host(self, asked: NetworkRequest) -> None:
        host, port = asked.host, asked.port
        denied = any(
            rule.names(host) if rule.port is None else rule.covers(host, port)
            for rule in self._deny
        )
        if denied or not any(rule.covers(host, port) for rule in self._allow):
            but = f" (not {asked.place})" if denied else ""
            raise RefusedError(
                f"this sandbox may reach {self.summary}{but}; asked for {asked.place}"
            )

    def _check_unread(self, asked: NetworkRequest) -> None:
        """Refuse https without inspection if the policy has rules that need inspection."""
        if self.policy.inspect_tls:
            return
        wanted = [name for name in ("methods", "paths") if getattr(self.policy, name) is not None]
        if any((rule.host, rule.port) == (asked.host, asked.port) for rule, _ in self._headers):
            wanted.append("headers")
        if wanted:
            raise RefusedError(
                f"https to {asked.place} is refused: the policy's {' and '.join(wanted)} need "
                f"inspect_tls=True"
            )


def _path_allowed(path: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a path matches; False for a path that servers may read in different ways."""
    plain = unquote(path, errors="replace")
    ambiguous = any(sign in plain for sign in ("\\", "//", "%", "#")) or "%2f" in path.lower()
    ambiguous = ambiguous or not plain.isprintable()
    if ambiguous or any(part.partition(";")[0] in (".", "..") for part in plain.split("/")):
        return False
    matches: Callable[[str], bool] = lambda pattern: fnmatch.fnmatchcase(  # noqa: E731
        plain, pattern.replace("[", "[[]").replace("?", "[?]")
    )
    return any(map(matches, patterns))


class Budget:
    """Requests and bytes of a sandbox and its clones together."""

    def __init__(self, policy: NetworkPolicy) -> None:
        self._policy = policy
        self._spent = policy.spent or NetworkSpent()

    @property
    def spent(self) -> bool:
        """Whether no request is left."""
        most = self._policy.max_requests
        return most is not None and self._spent.requests >= most

    def count_request(self) -> None:
        """Count a request, also an invalid one; RefusedError if none is left."""
        most_requests, most_bytes = self._policy.max_requests, self._policy.max_bytes
        if self.spent:
            raise RefusedError(f"this sandbox has used its max_requests={most_requests}", 429)
        self._spent.requests += 1
        if most_bytes is not None and self._spent.bytes >= most_bytes:
            raise RefusedError(f"this sandbox has used its max_bytes={most_bytes}", 429)

    def count_bytes(self, size: int) -> None:
        """Count bytes to or from a server; RefusedError once they are more than allowed."""
        self._spent.bytes += size
        most = self._policy.max_bytes
        if most is not None and self._spent.bytes > most:
            raise RefusedError(f"this sandbox has used its max_bytes={most}", 429)


@dataclass(slots=True)
class Traffic:
    """The bytes of one request, counted for it and for the budget."""

    budget: Budget
    sent: int = 0
    received: int = 0
    redacted: int = 0

    def count_sent(self, size: int) -> None:
        """Count bytes to the server."""
        self.sent += size
        self.budget.count_bytes(size)

    def count_received(self, size: int) -> None:
        """Count bytes from the server."""
        self.received += size
        self.budget.count_bytes(size)


class Log:
    """Adds each request to the lists of all sandboxes that share the proxy."""

    def __init__(self) -> None:
        self.open_entries: list[Entry] = []
        self._lists: list[RequestList] = []

    def new_list(self) -> RequestList:
        """Return a list that gets every request from now on."""
        requests = RequestList(self)
        self._lists.append(requests)
        return requests

    def end_list(self, requests: RequestList) -> None:
        """Add no more requests to a list."""
        self._lists.remove(requests)

    def open(self, entry: Entry) -> None:
        """Record a connection that may stay open for long."""
        self.open_entries.append(entry)

    def add(self, entry: Entry) -> None:
        """Record a request that has ended."""
        if entry in self.open_entries:
            self.open_entries.remove(entry)
        for listed in self._lists:
            listed.add(entry)


class RequestList:
    """The requests since the last result of one sandbox."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._kept: list[NetworkRequest] = []
        self._unlisted = 0
        self._reported: dict[Entry, tuple[int, int]] = {}
        """Open connections that were listed before, with their bytes at that time."""

    def add(self, entry: Entry) -> None:
        """List a request that has ended, without the bytes that were listed before."""
        before = self._reported.pop(entry, None)
        if before is not None and before == entry.bytes and not entry.ended_early:
            return
        if len(self._kept) < MAX_LISTED:
            self._kept.append(entry.finished(*(before or (0, 0))))
        else:
            self._unlisted += 1

    def take(self) -> NetworkUse:
        """Return the requests since the last call, and the new bytes of open connections."""
        for entry in self._log.open_entries:
            if self._reported.get(entry) != entry.bytes:
                before, now = self._reported.get(entry, (0, 0)), entry.bytes
                self._kept.append(entry.finished(*before))
                self._reported[entry] = now
        use = NetworkUse(requests=tuple(self._kept), unlisted=self._unlisted)
        self._kept, self._unlisted = [], 0
        return use


class Entry:
    """The record of one request while it runs."""

    def __init__(self, asked: NetworkRequest, budget: Budget) -> None:
        self.asked = asked
        self.traffic = Traffic(budget)
        self.status: int | None = None
        self.refused: str | None = None
        self.failed: str | None = None
        self._started = time.monotonic()

    @property
    def bytes(self) -> tuple[int, int]:
        """Sent and received so far."""
        return self.traffic.sent, self.traffic.received

    @property
    def ended_early(self) -> bool:
        """Whether it was refused, cut off, or failed."""
        return (self.refused or self.failed) is not None

    def refuse(self, why: RefusedError) -> None:
        """Record why there is no response: refused by the policy, or the server failed."""
        if isinstance(why, UnreachableError):
            self.failed = why.reason
        else:
            self.refused = why.reason

    def finished(self, sent_before: int = 0, received_before: int = 0) -> NetworkRequest:
        """Return the finished record, without the bytes that were listed before."""
        return replace(
            self.asked,
            path=self.asked.path[:PATH_LENGTH],
            status=self.status,
            sent=self.traffic.sent - sent_before,
            received=self.traffic.received - received_before,
            refused=self.refused,
            failed=self.failed,
            redacted=self.traffic.redacted,
            duration_ms=round((time.monotonic() - self._started) * 1000, 3),
        )
