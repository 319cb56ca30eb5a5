"""Checks requests against the policy; the guest sees the reason of a refusal."""

from __future__ import annotations

import asyncio
import fnmatch
import inspect
from typing import TYPE_CHECKING
from urllib.parse import unquote

from atoll.errors import AtollError
from atoll.network import HostRule

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from atoll.network import NetworkPolicy, NetworkRequest, OnRequest

_SHOWN_HOSTS = 8
_NEVER = ("TRACE", "TRACK")
"""Methods that echo a request, its credentials included."""


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
        self._allow = [HostRule.parse(one) for one in policy.allow]
        self._deny = [HostRule.parse(one) for one in policy.deny]
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
        found: dict[str, str] = {}
        for rule, added in self._headers:
            fits = asked.scheme == "https" if rule.port is None else rule.port == asked.port
            if fits and rule.host == asked.host:
                found |= added
        return found

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
