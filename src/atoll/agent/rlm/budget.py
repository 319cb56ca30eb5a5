"""What a run may spend: one account for the loop and all its sub-calls, to the cent.

A call sets aside the most that it can cost before it is made, and is settled by what it did cost,
so calls made side by side cannot together pass a limit. A child's account is a part of its
parent's: what it spends is spent there too. Money is counted in whole billionths of a dollar, so
that sums of it are exact.
"""

# ruff: noqa: SLF001 - an account and its parent are of one kind

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Union, cast

from atoll.errors import AtollError, ConfigError
from atoll.policy import check_positive, checked_keywords
from atoll.text.amounts import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    AnyBudget = Union[float, Mapping[str, Any], "Budget", None]  # noqa: UP007 - a name in quotes

WARN_AT_PERCENT = 80
SHARES_OF_A_DOLLAR = 10**9
METERED = ("usd", "tokens", "calls", "seconds")
UNLIMITED = float("inf")


class BudgetError(AtollError):
    """A limit of the budget is reached: which, how much was spent, how much was allowed."""

    def __init__(self, what: str, used: float, limit: float, kept: float = 0.0) -> None:
        self.what, self.used, self.limit, self.kept = what, used, limit, kept
        text = f"the budget is spent: {amount_text(what, used)} of {amount_text(what, limit)}"
        rest = f", and {amount_text(what, kept)} kept for the last answer" if kept else ""
        super().__init__(text + rest)


@checked_keywords("limit of the budget")
@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of one run with all its sub-calls; None means no limit."""

    usd: float | None = None
    tokens: int | None = None
    """In and out, of every call together."""
    calls: int | None = 1_000
    seconds: float | None = 600
    iterations: int = 30
    """Turns of one loop, the root's or a child's."""

    def __post_init__(self) -> None:
        for name in (*METERED, "iterations"):
            check_positive(name, getattr(self, name))
        for name in ("tokens", "calls", "iterations"):
            if isinstance(amount := getattr(self, name), float):
                raise ConfigError(f"{name} must be a whole number, not {amount!r}")
        if self.iterations is None:
            raise ConfigError("iterations must be a number: a loop has a limit of turns")

    @classmethod
    def of(cls, given: AnyBudget) -> Budget:
        """Return a budget: of dollars, of a dict of limits, or the given one; None: the default."""
        if given is None or isinstance(given, Budget):
            return given or cls()
        if isinstance(given, Mapping):
            return cls(**given)
        if isinstance(given, int | float) and not isinstance(given, bool):
            return cls(usd=given)
        raise ConfigError(
            f"not a budget: {given!r:.60}. Give dollars, such as 0.5, a dict such as "
            "{'usd': 0.5, 'calls': 50}, or an atoll.Budget"
        )


@dataclass(slots=True)
class Bill:
    """The actual cost of a call; initially what was reserved for it."""

    usd: float = 0.0
    tokens: int = 0


@dataclass(slots=True)
class Kept:
    """Amounts that an account keeps for a last call."""

    account: Account
    amounts: dict[str, float]

    def free(self) -> None:
        """Let them be used; calling it twice does nothing."""
        self.account._keep(self.amounts, -1)
        self.amounts = {}


class Account:
    """The live side of a budget. All of a run's calls are made in one event loop."""

    def __init__(
        self,
        budget: Budget,
        *,
        parent: Account | None = None,
        on_warning: Callable[[str, float, float], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.budget, self._parent = budget, parent
        self._on_warning, self._clock, self._started = on_warning, clock, clock()
        self._spent: dict[str, float] = {"usd": 0, "tokens": 0, "calls": 0}
        self._held: dict[str, float] = {"usd": 0, "tokens": 0, "calls": 0}
        self._kept: dict[str, float] = {"usd": 0, "tokens": 0, "calls": 0, "seconds": 0}
        self._warned: set[str] = set()
        self._settled: asyncio.Event = asyncio.Event() if parent is None else parent._settled

    @property
    def seconds(self) -> float:
        """Time since this account was opened."""
        return self._clock() - self._started

    def spent(self, what: str) -> float:
        """Return what was used of a limit, here and below."""
        return self.seconds if what == "seconds" else _amount(what, self._spent[what])

    def held(self, what: str) -> float:
        """Return what calls under way may still use of it."""
        return 0.0 if what == "seconds" else _amount(what, self._held[what])

    def left(self, what: str, *, settled: bool = False) -> float:
        """Return what can be reserved, here and above; `settled`: if calls under way were free.

        Infinite without a limit.
        """
        least, account = UNLIMITED, cast("Account | None", self)
        while account is not None:
            least = min(least, account._left(what, settled=settled))
            account = account._parent
        return least

    def check(self, *meters: str) -> None:
        """BudgetError if nothing of one of these may be used any more."""
        for what in meters:
            if self.left(what) <= 0:
                self.refuse(what)

    def refuse(self, what: str) -> NoReturn:
        """BudgetError of the account that has least left, here or above."""
        tightest = min(self._line(), key=lambda account: account._left(what, settled=False))
        used, kept = tightest.spent(what) + tightest.held(what), tightest._kept[what]
        raise BudgetError(what, used, getattr(tightest.budget, what) or 0, _amount(what, kept))

    @contextlib.contextmanager
    def call(self, *, usd: float = 0.0, tokens: int = 0) -> Iterator[Bill]:
        """Hold what a call costs at most while it is made; BudgetError if less is left."""
        self.check("calls", "seconds")
        most: dict[str, float] = {"usd": _units("usd", usd), "tokens": tokens, "calls": 1}
        for what, needed in most.items():
            if _units(what, self.left(what)) < needed:
                self.refuse(what)
        for account in self._line():
            for what, needed in most.items():
                account._held[what] += needed
        bill = Bill(usd=usd, tokens=tokens)
        try:
            yield bill
        finally:
            self._settle(most, bill)

    def keep_back(self, **amounts: float) -> Kept:
        """Keep amounts for a last call: nothing here or above can use them until they are freed.

        At most what is left is kept. Seconds are kept in this account alone: those of accounts
        that run side by side do not add up.
        """
        for what, amount in amounts.items():
            amounts[what] = _units(what, max(0.0, min(amount, self.left(what))))
        self._keep(amounts, 1)
        return Kept(self, amounts)

    async def settlement(self) -> None:
        """Wait until some call of the run is settled: there may be more to set aside then."""
        await self._settled.wait()

    def share(self, part: float) -> Account:
        """Return an account for a child: `part` of what is left of each limit."""
        limits = asdict(self.budget)
        for name in METERED:
            if limits[name] is not None:
                amount = max(0.0, self.left(name)) * part
                least = 1 if name in ("tokens", "calls") else 1 / SHARES_OF_A_DOLLAR
                limits[name] = max(least, int(amount) if least == 1 else amount)
        return Account(Budget(**limits), parent=self, clock=self._clock)

    def _left(self, what: str, *, settled: bool) -> float:
        limit = getattr(self.budget, what)
        if limit is None:
            return UNLIMITED
        if what == "seconds":
            return float(limit) - self.seconds - self._kept[what]
        used = self._spent[what] + self._kept[what] + (0 if settled else self._held[what])
        return _amount(what, _units(what, limit) - used)

    def _settle(self, most: dict[str, float], bill: Bill) -> None:
        cost = {"usd": _units("usd", bill.usd), "tokens": bill.tokens, "calls": 1}
        for account in self._line():
            for what, amount in most.items():
                account._held[what] -= amount
                account._spent[what] += cost[what]
            account._warn()
        self._settled.set()  # whoever waits looks again
        self._settled.clear()

    def _keep(self, amounts: dict[str, float], sign: int) -> None:
        """Keep amounts, or with -1 free them, here and above."""
        for account in self._line():
            for what, amount in amounts.items():
                if what != "seconds" or account is self:
                    account._kept[what] += sign * amount
        self._settled.set()
        self._settled.clear()

    def _line(self) -> Iterator[Account]:
        account: Account | None = self
        while account is not None:
            yield account
            account = account._parent

    def _warn(self) -> None:
        for what in METERED:
            limit = getattr(self.budget, what)
            if limit is None or what in self._warned:
                continue
            used = self.spent(what)
            if 100 * _units(what, used) >= WARN_AT_PERCENT * _units(what, limit):
                self._warned.add(what)
                if self._on_warning is not None:
                    self._on_warning(what, used, limit)


def amount_text(what: str, amount: float) -> str:
    """Return an amount in words."""
    if what == "usd":
        return f"${amount:.6f}".rstrip("0").rstrip(".")
    if what == "seconds":
        return f"{amount:.1f} s"
    return counted(int(amount), what)


def _units(what: str, amount: float) -> float:
    """Return an amount as it is counted: whole, but for one without a limit."""
    return round(amount * SHARES_OF_A_DOLLAR) if what == "usd" and amount < UNLIMITED else amount


def _amount(what: str, units: float) -> float:
    return units / SHARES_OF_A_DOLLAR if what == "usd" else units
