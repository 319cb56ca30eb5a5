"""The pool: one zygote client a tier, and a warm pool for each kind of guest in demand."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self, Unpack

from atoll.concurrency.shares import acting_for
from atoll.errors import ConfigError
from atoll.hosting.pool import tiers
from atoll.hosting.pool.sandbox import PooledSandbox
from atoll.launch import interpreter
from atoll.launch.warm_pool import WarmPool
from atoll.launch.zygote_client import OLDEST, ZygoteClient
from atoll.state.envelope import tier_of

if TYPE_CHECKING:
    from atoll.backends._image import HeldRoot
    from atoll.config import SandboxConfig
    from atoll.jail.supervisor.spec import Limits
    from atoll.launch.guest_handle import GuestHandle
    from atoll.launch.interpreter import Interpreter
    from atoll.packages.store import Hold
    from atoll.sandbox.base import ExecuteOptions
    from atoll.types import SandboxResult

WARM_SECONDS = 60.0
ASKED_BEFORE_PARKED = 2
MAX_WARM_POOLS = 16
MAX_KINDS = 1000
MAX_ENVIRONMENTS = 4
"""Environments of packages by name whose zygotes are kept warm."""
MAX_ENDING = 8
"""Guests of `Pool.run` that are being ended; the next run waits for one of them."""

Kind = tuple[str, "Limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """Settings of a pool."""

    python: str | None = None
    tiers: tiers.Tiers = field(default_factory=lambda: tiers.TIERS)
    default_tier: str | None = None
    """The tier of sessions, whose code is not known when they start; unset: the largest."""
    parked: int = 2
    most_parked: int = 16
    warm_seconds: float = WARM_SECONDS
    zygotes: bool = True
    """Whether guests are forked off warm interpreters; if not, each one starts cold."""

    @classmethod
    def with_more(
        cls, lines: list[str], *, python: str | None = None, tier: str | None = None
    ) -> PoolSettings:
        """Return the usual tiers with more imported in each; `tier` is for sessions.

        `lines` are names of modules or import statements.
        """
        added = [tiers.import_statement(line) for line in lines]
        more = {name: (*known, *added) for name, known in tiers.TIERS.items()}
        return cls(python=python, tiers=more, default_tier=tier)

    def __post_init__(self) -> None:
        if not self.tiers:
            raise ConfigError("a pool needs at least one tier")
        for lines in self.tiers.values():
            for line in lines:
                tiers.offers(line)
        if self.default_tier is not None and self.default_tier not in self.tiers:
            raise ConfigError(f"no tier {self.default_tier!r}: there are {', '.join(self.tiers)}")


class Pool:
    """Hands out guests that are warm. Use it in `async with`, in one event loop."""

    def __init__(self, settings: PoolSettings | None = None) -> None:
        self.settings = settings or PoolSettings()
        self.python = interpreter.resolve(self.settings.python)
        self._zygote_clients: dict[str, ZygoteClient] = {}
        self._warm_pools: dict[Kind, WarmPool] = {}
        self._asked: Counter[Kind] = Counter()
        self._takes: Counter[tuple[str, bool]] = Counter()
        """Guests that were taken, by tier and whether they were parked."""
        self._warming: dict[str, asyncio.Task[None]] = {}
        self._held: Hold | HeldRoot | None = None
        """Its packages by name, or its image, while it has guests."""
        self._environments: dict[str, Pool] = {}
        """Pools of guests with packages by name, by hash; the one used last is the last."""
        self._retired: list[Pool] = []
        self._winding_down: set[asyncio.Future[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def usable(self) -> bool:
        """Whether it has zygotes: they are wanted, and its interpreter can be one."""
        return self.settings.zygotes and self.python.version >= OLDEST

    @property
    def _default(self) -> str:
        return self.settings.default_tier or tiers.largest(self.settings.tiers)

    def why_cold(self, config: SandboxConfig) -> str | None:
        """Return why no zygote can serve this config, so that it starts cold; None if one can."""
        if not self.settings.zygotes:
            return "warm interpreters are switched off (REPL_ENABLED=false)"
        if not self.usable:
            return f"a zygote needs Python {OLDEST[0]}.{OLDEST[1]} or newer"
        for why, is_so in (
            ("the sandbox has a working folder of the host", config.workspace is not None),
            ("the sandbox has mounts", config.policy.mounts),
            (
                "its root is writable and it has further folders",
                config.writable_root and config.policy.folders,
            ),
            ("its image has no Python", self.python.carried),
            (
                "its image has more than 16 MiB in /app or at home",
                self.python.image and self.python.image.many_files,
            ),
        ):
            if is_so:
                return why
        if config.python is not None and config.image is None:
            asked = interpreter.resolve(config.python)
            if asked.identity != self.python.identity:
                return f"its interpreter is {asked.path}, the zygote's is {self.python.path}"
        return None

    def tier(self, config: SandboxConfig, code: str | None = None) -> str:
        """Return the tier to use: the one asked for, the default, or what the code needs.

        It has at least what the session had from which the state in `config` was saved. Where
        the code is known and its tier is not warm yet, a larger one that is will do. Code that
        makes code as it runs may want anything: it gets the largest tier that is warm.
        """
        if config.preload == tiers.PACKAGES:
            return self.tier_of(config)
        known = list(self.settings.tiers)
        least = self._tier_of_state(config)
        if config.preload is not None or code is None:
            return max(self.tier_of(config), least, key=known.index)
        wanted = max(tiers.choose(code, self.settings.tiers), least, key=known.index)
        warm = [name for name in known[known.index(wanted) :] if self._zygote_client(name).warm]
        if tiers.makes_code(code):
            return warm[-1] if warm else wanted
        if not warm or warm[0] == wanted:
            return wanted
        self._warm_later(wanted)
        return warm[0]

    def _tier_of_state(self, config: SandboxConfig) -> str:
        """Return the tier of the session that saved the state; the smallest if it had none."""
        smallest = next(iter(self.settings.tiers))
        tier = None if config.state is None else tier_of(config.state)
        return tier if tier is not None and tier in self.settings.tiers else smallest

    def tier_of(self, config: SandboxConfig) -> str:
        """Return the requested tier, or the default."""
        if config.preload == tiers.PACKAGES and config.packages:
            return tiers.PACKAGES
        return self._default if config.preload is None else self._known(config.preload)

    def with_packages(self, hold: Hold) -> Pool:
        """Return the pool of guests that have these packages by name.

        It has zygotes of its own. Those of the environment that was not used for longest end with
        their last guest, if there are too many.
        """
        environment = hold.environment
        if self.python.packages is not None:  # a sandbox of it is started again
            return self
        lines = tiers.with_packages(self.settings.tiers, environment.modules())
        settings = replace(self.settings, tiers=lines, default_tier=self._default)
        python = replace(self.python, packages=environment.site)
        return self._pool_of(environment.hash, python, settings, hold)

    def with_image(self, python: Interpreter, hold: HeldRoot) -> Pool:
        """Return the pool of guests whose root is the image of this interpreter."""
        assert python.image is not None
        if self.python.image is not None:  # a sandbox of it is started again
            return self
        bare = replace(python, packages=None)
        root = python.image.root
        key = f"{python.image.digest} {python.path} {root.writable} {root.user}"
        return self._pool_of(key, bare, self.settings, hold)

    def _pool_of(
        self, key: str, python: Interpreter, settings: PoolSettings, hold: Hold | HeldRoot
    ) -> Pool:
        """Return the pool of an environment or an image; it holds that while it has guests."""
        pool = self._environments.pop(key, None)
        if pool is not None and _files_of(pool.python) != _files_of(python):
            self._retire(pool)  # it was made again in another place, and the old one may be gone
            pool = None
        if pool is None:
            pool = Pool(settings)
            pool.python, pool._held = python, hold.again()
        self._environments[key] = pool
        while len(self._environments) > MAX_ENVIRONMENTS:
            self._retire(self._environments.pop(next(iter(self._environments))))
        return pool

    def _retire(self, pool: Pool) -> None:
        """End a pool's zygotes when their guests have; ended ones are forgotten."""
        ending = asyncio.ensure_future(pool.wind_down())
        self._winding_down.add(ending)
        ending.add_done_callback(self._winding_down.discard)
        self._retired = [retired for retired in self._retired if not retired.release_if_over()] + [
            pool
        ]

    async def wind_down(self) -> None:
        """End parked guests now, and each zygote with its last guest."""
        await asyncio.gather(*(parked.close() for parked in self._warm_pools.values()))
        self._warm_pools.clear()
        for client in self._zygote_clients.values():
            client.retire()

    def release_if_over(self) -> bool:
        """Return whether nothing of the pool is left; its packages are not in use any more then."""
        over = all(client.over for client in self._zygote_clients.values())
        if over and self._held is not None:
            self._held.close()
        return over

    async def open(self, config: SandboxConfig, code: str | None = None) -> PooledSandbox:
        """Return a started sandbox; `code` is what will run in it, if known."""
        box = PooledSandbox(config, self, self.tier(config, code))
        try:
            await box.initialize(config.context)
        except BaseException:
            await box.destroy()
            raise
        return box

    async def run(
        self,
        code: str,
        config: SandboxConfig,
        *,
        timeout_ms: float | None = None,
        wait_for_end: bool = False,
        **options: Unpack[ExecuteOptions],
    ) -> SandboxResult:
        """Run code in a fresh sandbox and return the result; `options` are those of execute().

        The pool ends the sandbox in the background; with `wait_for_end` nothing is left of it.
        """
        box = PooledSandbox(config, self, self.tier(config, code))
        try:
            return await box.run(code, timeout_ms, **options)
        finally:
            task = asyncio.ensure_future(box.destroy())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            if wait_for_end:
                await asyncio.wait({task})
            while len(self._ending) > MAX_ENDING:
                await asyncio.wait(self._ending, return_when=asyncio.FIRST_COMPLETED)

    async def warm(self, *names: str) -> None:
        """Start the zygotes of these tiers (unset: the default tier) before the first request."""
        wanted = [self._known(name) for name in names] or [self._default]
        await asyncio.gather(*(self._zygote_client(name).start() for name in wanted))

    async def park(self, tier: str, limits: Limits) -> None:
        """Fill the warm pool of this kind now, before it is asked for."""
        warm_pool = self._warm_pool((tier, limits))
        warm_pool.refill()
        await warm_pool.filled()

    async def take(self, tier: str, limits: Limits) -> GuestHandle:
        """Return a fresh guest, before its handshake."""
        kind = (tier, limits)
        if kind in self._warm_pools:
            return await self._warm_pools[kind].take()
        if len(self._asked) > MAX_KINDS:
            self._asked.clear()
        self._asked[kind] += 1
        if self._asked[kind] > ASKED_BEFORE_PARKED and len(self._warm_pools) < MAX_WARM_POOLS:
            return await self._warm_pool(kind).take()
        return await self._new_warm_pool(kind, 0, 1).take()

    def stats(self) -> dict[str, dict[str, Any]]:
        """Return for each tier: its zygote's start time, what it lacks, its guests so far."""
        return {
            name: {
                "warm_seconds": client.warm_seconds,
                "missing": client.missing,
                "restarts": client.restarts,
                "taken_parked": self._takes[name, True],
                "taken_new": self._takes[name, False],
                "parked": sum(
                    s.parked for (tier, _), s in self._warm_pools.items() if tier == name
                ),
            }
            for name, client in self._zygote_clients.items()
        } | {
            f"{name}, {_label(identity)}": facts
            for identity, pool in self._environments.items()
            for name, facts in pool.stats().items()
        }

    async def close(self) -> None:
        """End every zygote and every guest."""
        pools = [*self._environments.values(), *self._retired]
        self._environments, self._retired = {}, []
        await asyncio.gather(*self._winding_down, *(pool.close() for pool in pools))
        warming = list(self._warming.values())
        for task in warming:
            task.cancel()
        await asyncio.gather(*warming, *self._ending, return_exceptions=True)
        await asyncio.gather(*(warm_pool.close() for warm_pool in self._warm_pools.values()))
        await asyncio.gather(*(client.close() for client in self._zygote_clients.values()))
        self._warm_pools.clear()
        self._zygote_clients.clear()
        if self._held is not None:
            self._held.close()
            self._held = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    def _known(self, name: str) -> str:
        if name not in self.settings.tiers:
            known = ", ".join(self.settings.tiers)
            raise ConfigError(f"no tier {name!r} to preload: there are {known}")
        return name

    def _warm_later(self, name: str) -> None:
        """Start a zygote in the background; a failure is raised to the request that needs it."""
        if name not in self._warming:
            with acting_for(""):  # it serves all clients
                task = self._warming[name] = asyncio.ensure_future(
                    self._zygote_client(name).start()
                )
            task.add_done_callback(lambda done: self._warmed(name, done))

    def _warmed(self, name: str, task: asyncio.Task[None]) -> None:
        self._warming.pop(name, None)
        if not task.cancelled():
            task.exception()

    def _zygote_client(self, tier: str) -> ZygoteClient:
        if tier not in self._zygote_clients:
            lines = self.settings.tiers[tier]
            fewer = tiers.STANDARD if tier == tiers.PACKAGES else None
            patience = self.settings.warm_seconds
            self._zygote_clients[tier] = ZygoteClient(
                self.python, lines, patience, if_threads=fewer
            )
        return self._zygote_clients[tier]

    def _warm_pool(self, kind: Kind) -> WarmPool:
        if kind not in self._warm_pools:
            least, most = self.settings.parked, self.settings.most_parked
            self._warm_pools[kind] = self._new_warm_pool(kind, least, most)
        return self._warm_pools[kind]

    def _new_warm_pool(self, kind: Kind, least: int, most: int) -> WarmPool:
        tier, limits = kind
        made = WarmPool(lambda: self._zygote_client(tier).fork_guest(limits), least, most)
        made.on_take = lambda parked: self._takes.update([(tier, parked)])
        return made


def _files_of(python: Interpreter) -> tuple[object, ...]:
    """Return what its guests see of the host: other files need another zygote."""
    return python.packages, python.root


def _label(key: str) -> str:
    """Return how statistics name the pool of an image or an environment of packages."""
    kind, digest = ("image", key[7:]) if key.startswith("sha256:") else ("packages", key)
    return f"{kind} {digest[:12]}"
