"""What a run may spend: one account for the loop and all its sub-calls, to the cent.

A call reserves the most that it can cost before it is made, and is settled by what it did cost, so
that calls made side by side cannot together pass a limit. A child's account is a part of its
parent's: what it spends is spent there too.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atoll.errors import AtollError
from atoll.policy import check_positive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WARN_AT = 0.8
ROUNDING = 1e-9
"""Dollars that are no more than the error of adding them up."""
METERED = ("usd", "tokens", "calls", "seconds")


class BudgetError(AtollError):
    """A limit of the budget is reached: which, how much was spent, how much was allowed."""

    def __init__(self, what: str, used: float, limit: float) -> None:
        self.what, self.used, self.limit = what, used, limit
        super().__init__(f"the budget is spent: {told(what, used)} of {told(what, limit)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of one run with all its sub-calls; None is no limit."""

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

    def to_dict(self) -> dict[str, float | None]:
        """The limits as plain data."""
        return {name: getattr(self, name) for name in (*METERED, "iterations")}


@dataclass(slots=True)
class Spent:
    """What was spent, and what calls under way may still spend."""

    usd: float = 0.0
    tokens: int = 0
    calls: int = 0
    reserved_usd: float = 0.0
    reserved_tokens: int = 0


@dataclass(slots=True)
class Bill:
    """What a call did cost; whoever makes it writes it here."""

    usd: float = 0.0
    tokens: int = 0


@dataclass(slots=True)
class Account:
    """The live side of a budget."""

    budget: Budget
    parent: Account | None = None
    on_warning: Callable[[str, float, float], None] | None = None
    clock: Callable[[], float] = time.monotonic
    spent: Spent = field(default_factory=Spent)
    started: float = field(init=False)
    _warned: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.started = self.clock()

    @property
    def seconds(self) -> float:
        """Time since this account was opened."""
        return self.clock() - self.started

    def left(self, what: str) -> float:
        """How much of a limit there is to reserve, here and above; infinite without one."""
        limit = getattr(self.budget, what)
        here = float("inf") if limit is None else limit - self._committed(what)
        return here if self.parent is None else min(here, self.parent.left(what))

    def check(self) -> None:
        """BudgetError if nothing may be spent any more."""
        for what in METERED:
            if self.left(what) <= (ROUNDING if what == "usd" else 0):
                self._refuse(what)

    @contextlib.contextmanager
    def call(self, *, usd: float = 0.0, tokens: int = 0) -> Iterator[Bill]:
        """One call that costs at most so much; BudgetError if that is not there any more."""
        for what, needed in (("calls", 1), ("tokens", tokens), ("usd", usd), ("seconds", 0)):
            if self.left(what) + ROUNDING < needed or self.left(what) <= 0 < needed:
                self._refuse(what)
        if self.left("seconds") <= 0:
            self._refuse("seconds")
        self._reserve(usd, tokens)
        bill = Bill()
        try:
            yield bill
        finally:
            self._settle(usd, tokens, bill)

    def share(self, part: float, **limits: float | None) -> Account:
        """An account for a child: `part` of what is left of each limit, or as `limits` say."""
        known = {name: getattr(self.budget, name) for name in (*METERED, "iterations")}
        for name in ("usd", "tokens", "seconds"):
            if known[name] is not None:
                amount = max(self.left(name) * part, ROUNDING)
                known[name] = max(1, int(amount)) if name == "tokens" else amount
        return Account(
            Budget(**{**known, **limits}),
            parent=self,
            clock=self.clock,
        )

    def _committed(self, what: str) -> float:
        if what == "seconds":
            return self.seconds
        reserved = getattr(self.spent, f"reserved_{what}", 0)
        return float(getattr(self.spent, what) + reserved)

    def _reserve(self, usd: float, tokens: int) -> None:
        for account in self._line():
            account.spent.calls += 1
            account.spent.reserved_usd += usd
            account.spent.reserved_tokens += tokens

    def _settle(self, usd: float, tokens: int, bill: Bill) -> None:
        for account in self._line():
            account.spent.reserved_usd -= usd
            account.spent.reserved_tokens -= tokens
            account.spent.usd += bill.usd
            account.spent.tokens += bill.tokens
            account._warn()  # noqa: SLF001 - of the same kind

    def _line(self) -> Iterator[Account]:
        account: Account | None = self
        while account is not None:
            yield account
            account = account.parent

    def _warn(self) -> None:
        for what in METERED:
            limit = getattr(self.budget, what)
            used = self.seconds if what == "seconds" else getattr(self.spent, what)
            if limit is not None and used >= WARN_AT * limit and what not in self._warned:
                self._warned.add(what)
                if self.on_warning is not None:
                    self.on_warning(what, used, limit)

    def _refuse(self, what: str) -> None:
        for account in self._line():  # the one that is spent, which may be further up
            limit = getattr(account.budget, what)
            if limit is not None and limit - account._committed(what) <= self.left(what) + ROUNDING:  # noqa: SLF001
                raise BudgetError(what, account._committed(what), limit)  # noqa: SLF001
        raise BudgetError(what, self._committed(what), getattr(self.budget, what) or 0)


def told(what: str, amount: float) -> str:
    """An amount in words."""
    if what == "usd":
        return f"${amount:.4f}".rstrip("0").rstrip(".")
    if what == "seconds":
        return f"{amount:.1f} s"
    return f"{int(amount):,} {what}"
