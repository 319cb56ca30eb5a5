"""Several services that share a Redis: one quota for all of them, and requests that find their way.

A session lives in the service that opened it. A request for it that reaches another service is
passed on, with its body and its answer as they come. If Redis cannot be reached, each service
goes on with its own limits and its own sessions, and /health/detailed says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from typing import TYPE_CHECKING, Any

from atoll.errors import ConfigError
from atoll.extras import hint
from atoll.service import clock
from atoll.service.access.quotas import DAY_SECONDS, no_cpu_left
from atoll.service.http.problems import Problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from atoll.service.access.keys import Principal
    from atoll.service.settings import ServiceSettings

_LOG = logging.getLogger("atoll.service")
SECONDS = 1.0
"""How long Redis may take to answer."""
LIVE_SECONDS = 60
_TAKE = """
local room, rate, now = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local known = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local passed = now - (tonumber(known[2]) or now)
local tokens = math.min(room, (tonumber(known[1]) or room) + passed * rate)
local allowed = tokens >= 1
redis.call('HSET', KEYS[1], 'tokens', allowed and tokens - 1 or tokens, 'at', now)
redis.call('EXPIRE', KEYS[1], 3600)
return allowed and '0' or tostring((1 - tokens) / rate)
"""
_COUNT = """
local total, live = tonumber(ARGV[2]), redis.call('HGETALL', KEYS[1])
for at = 1, #live, 2 do
  if live[at] ~= ARGV[1] then
    if redis.call('EXISTS', KEYS[2] .. live[at]) == 1 then total = total + tonumber(live[at + 1])
    else redis.call('HDEL', KEYS[1], live[at]) end
  end
end
if total > tonumber(ARGV[3]) then return -1 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return total
"""


class Replicas:
    """What one service asks of Redis, and of the others."""

    def __init__(self, settings: ServiceSettings) -> None:
        try:
            import redis.asyncio  # noqa: PLC0415 - an extra
        except ImportError:
            raise ConfigError(f"Redis needs the extra `redis`. {hint('redis')}") from None
        if not settings.own_url:
            raise ConfigError("with a Redis, name the address that others reach: --own-url URL")
        self._url, self._name = settings.own_url.rstrip("/"), secrets.token_hex(8)
        self._redis: Any = redis.asyncio.Redis.from_url(
            settings.redis, socket_timeout=SECONDS, socket_connect_timeout=SECONDS
        )
        self._failures = (redis.exceptions.RedisError, OSError, TimeoutError)
        self.problem = ""
        self._own: Counter[str] = Counter()
        """What runs here, by the name of its counter. Redis gets these numbers, not changes of
        them, and again with each `announce`: whatever it missed is right again then."""
        self._unsent: Counter[str] = Counter()
        """What keys spent today, CPU seconds and bytes, that was not sent to Redis yet."""
        self._spent: dict[str, float] = {}
        """What keys spent today in all services, as Redis said last."""

    async def request(self, principal: Principal) -> None:
        """Count a request against the key's rate in all services; 429 if it makes too many."""
        quota = principal.quota
        now = await self._ask(self._redis.time())
        if now is None:
            return
        moment = now[0] + now[1] / 1e6
        asked = (quota.room, quota.requests_per_second, moment)
        wait = await self._ask(self._redis.eval(_TAKE, 1, f"atoll:rate:{principal.key}", *asked))
        if wait is not None and float(wait) > 0:
            text = f"the key may make {quota.requests_per_second:g} requests per second"
            raise Problem(429, "rate_limited", f"{text}: send fewer", retry_after=float(wait))

    async def count(self, what: str, principal: Principal, most: int) -> None:
        """Count an execution or a session in all services; 429 if there are too many."""
        name = f"atoll:{what}:{principal.key}"
        self._own[name] += 1
        asked = (self._name, self._own[name], most)
        if await self._ask(self._redis.eval(_COUNT, 2, name, "atoll:live:", *asked)) == -1:
            self._own[name] -= 1
            text = f"the key has {most} {what} in all services: wait for one to end"
            raise Problem(429, "rate_limited", text, retry_after=1)

    @contextlib.asynccontextmanager
    async def execution(self, ident: str, principal: Principal) -> AsyncIterator[None]:
        """Count an execution of a key until its end, and say that it is here; 429."""
        await self.check_cpu(principal)
        await self.count("executions", principal, principal.quota.executions)
        try:
            await self.announce([ident])
            yield
        finally:
            await self.adjust("executions", principal.key, -1)

    async def adjust(self, what: str, key: str, by: int) -> None:
        """Count more or fewer, whatever the limit is."""
        name = f"atoll:{what}:{key}"
        self._own[name] += by
        await self._ask(self._redis.hset(name, self._name, self._own[name]))

    async def used_cpu(self, key: str, seconds: float) -> None:
        """Count the CPU time of an execution towards the day of all services."""
        self.spend("cpu", key, seconds)
        await self._send()

    def spend(self, what: str, key: str, amount: float) -> None:
        """Count what a key spends towards the day of all services; it is sent soon."""
        self._unsent[_of_today(what, key)] += amount  # type: ignore[assignment]  # or a float

    def spent(self, what: str, key: str) -> float:
        """Return what a key has spent today in all services, as far as it is known here."""
        name = _of_today(what, key)
        return self._spent.get(name, 0.0) + self._unsent[name]

    async def check_cpu(self, principal: Principal) -> None:
        """Raise 429 if the key has used the CPU time of its day in all services together."""
        most = principal.quota.cpu_seconds_per_day
        if most is None:
            return
        used = await self._ask(self._redis.get(_of_today("cpu", principal.key)))
        if used is not None and float(used) >= most:
            raise no_cpu_left(most)

    async def announce(self, idents: list[str]) -> None:
        """Say that this service lives, and has these sessions and executions."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.set(f"atoll:live:{self._name}", self._url, ex=LIVE_SECONDS)
        for ident in idents:
            pipe.set(f"atoll:at:{ident}", self._url, ex=LIVE_SECONDS)
        sent = dict(self._own)
        for name, number in sent.items():
            pipe.hset(name, self._name, number)
        if await self._ask(pipe.execute(), always=True) is None:
            return
        for name in [name for name in sent if not sent[name] and not self._own[name]]:
            del self._own[name]
        await self._send()

    async def find(self, ident: str) -> str | None:
        """Return the address of the other service that has a session or execution."""
        address = await self._ask(self._redis.get(f"atoll:at:{ident}"))
        url = address.decode() if address else None
        return None if url == self._url else url

    async def close(self) -> None:
        """Say that this service has ended."""
        await self._ask(self._redis.delete(f"atoll:live:{self._name}"))
        await self._redis.aclose()

    async def _send(self) -> None:
        """Tell Redis what was spent that it does not know of; keep what it does not take.

        It answers with what all services have spent.
        """
        today = f"atoll:{_today()}:"
        sent, self._unsent = self._unsent, Counter()
        known = [name for name in self._spent if name.startswith(today) and name not in sent]
        pipe = self._redis.pipeline(transaction=False)
        for name in (*sent, *known):
            pipe.incrbyfloat(name, sent[name])
            pipe.expire(name, 2 * DAY_SECONDS)
        if not (sent or known):
            return
        answers = await self._ask(pipe.execute())
        if answers is None:
            self._unsent.update(sent)
        else:
            self._spent = dict(zip((*sent, *known), map(float, answers[::2]), strict=True))

    async def _ask(self, work: Any, *, always: bool = False) -> Any:
        """Return Redis' answer; None, with a word in the log, if it has none.

        While it cannot be reached, only `announce` asks it, every few seconds: no request waits
        for a Redis that is away.
        """
        if self.problem and not always:
            work.close()
            return None
        try:
            async with asyncio.timeout(2 * SECONDS):
                answer = await work
        except self._failures as exc:
            if not self.problem:
                _LOG.warning("Redis cannot be used: %s: %s", type(exc).__name__, exc)
            self.problem = "Redis cannot be reached: limits and sessions are this service's own"
            return None
        self.problem = ""
        return answer


def _today() -> int:
    return int(clock.now() // DAY_SECONDS)


def _of_today(what: str, key: str) -> str:
    return f"atoll:{_today()}:{what}:{key}"
