"""A model behind HTTP: asks in a dialect, asks again where that may help, counts and prices."""

from __future__ import annotations

import asyncio
import importlib.util
import ipaddress
import logging
import random
import re
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import urlsplit

from atoll.agent.rlm.models import faults
from atoll.agent.rlm.models.dialects import Draft
from atoll.agent.rlm.models.types import Completion, Options, estimated_usage
from atoll.errors import (
    ConfigError,
    ModelRefusedError,
    ModelReplyError,
    ModelTimeoutError,
)
from atoll.extras import hint
from atoll.log import LogEvent, to_stdlib
from atoll.policy import MIB, check_positive

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from atoll.agent.rlm.models.dialects import Dialect
    from atoll.agent.rlm.models.faults import Fault
    from atoll.agent.rlm.models.prices import Price
    from atoll.agent.rlm.models.transport import Transport
    from atoll.agent.rlm.models.types import CallOptions, Message, OnText, Usage
    from atoll.errors import ModelError

    Sleep = Callable[[float], Awaitable[None]]


DEFAULT_TIMEOUT_SECONDS = 600.0
DEFAULT_RETRIES = 4
DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A server's base URL, which is checked before a key is sent to it."""

    url: str
    host: str
    port: int
    local: bool
    """Whether it is this machine: no proxy is used, and nothing is paid."""

    @property
    def place(self) -> str:
        """Host and port, as error messages name them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @classmethod
    def parse(cls, url: str) -> Address:
        """Return the address in a URL; an error does not repeat the URL, which may have a key."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise ConfigError("base_url is not a URL: give http://HOST:PORT/v1") from None
        if parts.scheme not in DEFAULT_PORTS or not host:
            raise ConfigError("base_url must begin with http:// or https:// and name a host")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ConfigError("base_url may have no user, password, query or fragment in it")
        port = port or DEFAULT_PORTS[parts.scheme]
        return cls(url=url.rstrip("/"), host=host, port=port, local=_is_loopback(host))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one call may take."""

    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """A call with all its retries."""
    idle_seconds: float = 300.0
    """Silence in a stream: a model may think for minutes. An answer that is not streamed comes
    after one long silence, which only `timeout_seconds` ends."""
    connect_seconds: float = 10.0
    max_retries: int = DEFAULT_RETRIES
    max_retry_wait_seconds: float = 60.0
    """The longest that a server's Retry-After is heeded."""
    max_bytes: int = 64 * MIB
    """An answer, as it comes over the wire."""
    max_event_bytes: int = MIB
    """One event of a streamed answer."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if name != "max_retries":
                check_positive(name, getattr(self, name))
        if self.max_retries < 0:
            raise ConfigError(f"max_retries must be 0 or more, not {self.max_retries}")


_FIRST_WAIT, _LONGEST_WAIT = 0.5, 8.0
_DISPENSABLE = tuple(
    """
    temperature stop stop_sequences max_tokens max_completion_tokens stream_options
    cache_control
""".split()
)
_NOT_TAKEN = re.compile(
    r"support|deprecat|unknown|unrecogni|unexpected|extra input|not permitted|not allowed|removed"
)
_TOO_LARGE = re.compile(r"too large|too high|at most|exceed|greater than|less than|maximum|larger")
_LIMIT_NAMES = ("max_tokens", "max_completion_tokens")
_STATED_LIMITS = (
    re.compile(r"at most[^\d]{0,10}(\d+)"),
    re.compile(r"(?:less than or equal to|up to|<=)[^\d]{0,5}(\d+)"),
    re.compile(r"\d+ ?> ?(\d+)"),
    re.compile(r"\[ ?\d+, ?(\d+) ?\]"),
    re.compile(r"(?:maximum|limit)[^\d]{0,40}(\d+)"),
)
"""How servers name the most tokens that a reply may have, in the order of how clear they are."""
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3})")
_LONGEST_TOLD = 2_000
_WRONG_FIELD = frozenset({400, 422})
_UNAUTHORIZED = frozenset({401, 403})


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of `complete`, through all its attempts."""

    messages: Sequence[Message]
    options: Options
    on_text: OnText | None
    deadline: float | None


class HttpModel:
    """A Model that is a server's."""

    def __init__(
        self,
        name: str,
        *,
        dialect: Dialect,
        address: Address,
        key: str | None = None,
        price: Price | None = None,
        limits: Limits | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        if importlib.util.find_spec("httpx2") is None:
            raise ConfigError(f"models behind HTTP need httpx2. {hint('llm')}")
        if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
            raise ConfigError(f"{dialect.key_variable} has characters that no key has")
        self.name = name
        self._model = name.partition("/")[2]
        self._dialect, self._address, self._key = dialect, address, key
        self._price, self._sleep = price, sleep
        self._limits = limits or Limits()
        self._transport: Transport | None = None
        self._without: frozenset[str] = frozenset()
        self._most_tokens: int | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} at {self._address.host}>"

    async def complete(
        self, messages: Sequence[Message], **options: Unpack[CallOptions]
    ) -> Completion:
        """Return the answer, within the limits."""
        if self._closed:
            raise ModelRefusedError(f"{self.name} has been closed")
        started = time.monotonic()
        outcome: Draft | ModelError | None = None
        try:
            async with asyncio.timeout(self._limits.timeout_seconds) as timer:
                call = Call(
                    messages=tuple(messages),
                    options=Options.of(options),
                    on_text=options.get("on_text"),
                    deadline=timer.when(),
                )
                outcome = await self._ask(call)
        except TimeoutError:
            if not timer.expired():
                raise
        if outcome is None:
            limit = f"timeout_seconds={self._limits.timeout_seconds:g}"
            where = f"{self.name} at {self._address.place}"
            text = f"{where}: no complete answer within {limit}"
            raise ModelTimeoutError(f"{text}. Check whether the server hangs or is overloaded")
        if not isinstance(outcome, Draft):
            raise outcome
        return self._completion(messages, outcome, started)

    def would_cost(self, usage: Usage) -> float | None:
        """Return dollars, by the price that this model was given."""
        return None if self._price is None else self._price.of(usage)

    async def close(self) -> None:
        """Close every connection."""
        self._closed = True
        if self._transport is not None:
            await self._transport.close()

    async def _ask(self, call: Call) -> Draft | ModelError:
        """Until there is an answer, or no hope of one.

        An error is a value here: raised while another is handled, it would carry that one along,
        and with it the request and its key.
        """
        without, tries = self._without, 0
        while True:
            draft = Draft(call.on_text, call.options.stop)
            body = self._body(call, without)
            fault = await self._attempt(body, draft)
            if fault is None:
                self._without = without
                return draft
            if draft.handed:
                return self._broken_off(fault, draft, call)
            if limit := _stated_limit(fault, body):
                self._log("model_limit_taken", logging.WARNING, max_tokens=limit)
                self._most_tokens = limit
                continue
            if name := _blamed(fault, body, without):
                self._log("model_option_dropped", logging.WARNING, option=name)
                without |= {name}
                continue
            wait = self._wait(fault, tries)
            tries += 1
            if not fault.retry or tries > self._limits.max_retries or _late(call, wait):
                return fault.error(self._message(fault, tries, call))
            self._log("model_retry", logging.INFO, reason=fault.reason, seconds=round(wait, 3))
            await self._sleep(wait)

    def _body(self, call: Call, without: frozenset[str]) -> dict[str, object]:
        streamed, options = call.on_text is not None, call.options
        if self._most_tokens is not None:
            most = min(options.max_tokens or self._most_tokens, self._most_tokens)
            options = replace(options, max_tokens=most)
        return self._dialect.body(
            self._model, call.messages, options, stream=streamed, without=without
        )

    async def _attempt(self, body: Mapping[str, object], draft: Draft) -> Fault | None:
        dialect = self._dialect
        fault = await self._connection().exchange(
            dialect.path, dialect.headers(self._key), body, lambda said: dialect.read(said, draft)
        )
        if draft.finish is not None:
            return None  # all was said; what the connection did afterwards does not matter
        if fault is None and not draft.has_text:
            return faults.broken("the answer has no message in it")
        return fault

    def _connection(self) -> Transport:
        if self._transport is None:
            from atoll.agent.rlm.models.transport import Transport  # noqa: PLC0415 - 0.2 s, on first use

            self._transport = Transport(self._address, self._limits)
        return self._transport

    def _wait(self, fault: Fault, tries: int) -> float:
        if fault.after is not None:
            return min(fault.after, self._limits.max_retry_wait_seconds)
        longest = min(_FIRST_WAIT * 2.0**tries, _LONGEST_WAIT)
        return longest * random.uniform(0.5, 1.0)  # noqa: S311 - so that not all come back at once

    def _message(self, fault: Fault, tries: int, call: Call) -> str:
        text = f"{self.name} at {self._address.place}: {self._reason(fault, call)}"
        if fault.retry:
            text += f"; asked {tries} times" if tries > 1 else "; asked once"
        if fault.unreached:
            text += f". {self._reach()}"
        if fault.status in _UNAUTHORIZED:
            text += f". {self._key_advice()}"
        elif fault.status == 404:
            text += f". Check the model's name and the base_url (--base-url): {self._address.url}"
        elif fault.status is not None and 300 <= fault.status < 400:
            text += ". Redirects are not followed: give the final address as base_url"
        elif fault.code == faults.TOO_LONG:
            text += ". Give the tokens that the model's context window has: window=N (--window N)"
        elif fault.code in faults.UNPAID:
            text += ". The provider's account has no credit left, or has reached its limit"
        return text

    def _reason(self, fault: Fault, call: Call) -> str:
        """Why it failed, with the server's own words."""
        keys = {self._dialect.key_variable: self._key}
        message = faults.shown(fault.told, keys, call.messages)
        return f"{fault.reason}: {message}" if message else fault.reason

    def _key_advice(self) -> str:
        """Return what to do about a key that is refused, or missing."""
        name = self._dialect.key_variable
        if self._key:
            return f"The server refused the key in {name}: export a valid one"
        return f"The server wants a key: export {name}=..."

    def _reach(self) -> str:
        """Return what to check when nothing answers at the address."""
        url = self._address.url
        if self._address.local:
            return (
                f"Is the model server running? Start it, or give its base_url (--base-url): {url}"
            )
        return f"Check the network, the proxy settings and the base_url (--base-url): {url}"

    def _broken_off(self, fault: Fault, draft: Draft, call: Call) -> ModelError:
        text = f"{self.name} at {self._address.place}: broke off after {draft.handed} characters"
        return ModelReplyError(f"{text}: {self._reason(fault, call)}", received=draft.handed)

    def _completion(self, messages: Sequence[Message], draft: Draft, started: float) -> Completion:
        text, finish = draft.end()
        usage = self._dialect.usage(draft.counts) or estimated_usage(messages, text)
        return Completion(
            text=text,
            usage=usage,
            usd=self.would_cost(usage),
            model=self.name,
            finish=finish,
            duration_ms=(time.monotonic() - started) * 1000,
        )

    def _log(self, event: str, level: int, **fields: object) -> None:
        to_stdlib(LogEvent(name=event, level=level, fields={"model": self.name, **fields}))


def _blamed(fault: Fault, body: Mapping[str, object], without: frozenset[str]) -> str | None:
    """Return the field that the server says it does not take and that can be done without.

    Models differ in it, and change: newer ones choose their temperature themselves. Stops are
    kept by the Draft, whether a server knows them or not.
    """
    text = fault.told.lower()
    if fault.status not in _WRONG_FIELD or not _NOT_TAKEN.search(text):
        return None
    for name in _DISPENSABLE:
        if name in _LIMIT_NAMES and _TOO_LARGE.search(text):
            continue  # a reply without a limit could cost anything
        sent = name in body or name == "cache_control"  # which stands deeper in
        if sent and name not in without and re.search(rf"\b{name}\b", text):
            return name
    return None


def _stated_limit(fault: Fault, body: Mapping[str, Any]) -> int | None:
    """Return the most tokens of a reply that the server names when it refuses a larger number."""
    sent = next((body[name] for name in _LIMIT_NAMES if name in body), None)
    text = _THOUSANDS.sub("", fault.told[:_LONGEST_TOLD].lower())
    named = any(name in text for name in (*_LIMIT_NAMES, "completion tokens", "output tokens"))
    if fault.status not in _WRONG_FIELD or sent is None or not named:
        return None
    result = (match for pattern in _STATED_LIMITS for match in pattern.findall(text))
    return next(
        (n for number in result if len(number) < 10 and 0 < (n := int(number)) < sent), None
    )


def _late(call: Call, wait: float) -> bool:
    """Return whether the wait alone would outlast the deadline."""
    deadline = call.deadline
    return deadline is not None and asyncio.get_running_loop().time() + wait >= deadline
