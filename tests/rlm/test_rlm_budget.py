"""Accounts: never more than the limit, however calls come together or fail; sums are exact."""

from __future__ import annotations

import random

import pytest

from atoll.agent.rlm.budget import METERED, Account, Budget, BudgetError
from atoll.errors import ConfigError


def spend(account, usd=0.0, tokens=0):
    with account.call(usd=usd, tokens=tokens) as bill:
        bill.usd, bill.tokens = usd, tokens


def test_sums_of_cents_are_exact():
    account = Account(Budget(usd=0.3))
    spend(account, 0.1)
    spend(account, 0.2)
    assert account.left("usd") == 0
    with pytest.raises(BudgetError, match=r"the budget is spent: \$0.3 of \$0.3") as caught:
        spend(account, 0.000001)
    assert (caught.value.what, caught.value.used, caught.value.limit) == ("usd", 0.3, 0.3)


def test_a_thousand_tenths_of_a_cent_are_a_dollar():
    account = Account(Budget(usd=1.0))
    for _ in range(1000):
        spend(account, 0.001)
    assert (account.spent("usd"), account.left("usd")) == (1.0, 0.0)


def test_what_is_set_aside_is_not_there_for_others_and_comes_back():
    account = Account(Budget(usd=1.0, tokens=100))
    with account.call(usd=0.9, tokens=90) as bill:
        assert account.left("tokens") == 10
        assert account.left("tokens", settled=True) == 100
        with pytest.raises(BudgetError), account.call(usd=0.2):
            pass
        bill.usd, bill.tokens = 0.1, 10
    assert (account.left("usd"), account.left("tokens")) == (0.9, 90)


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        (Budget(calls=1), "1 call of 1 call$"),
        (Budget(tokens=50), "50 tokens of 50 tokens"),
        (Budget(seconds=1), "1.5 s of 1.0 s"),
    ],
)
def test_every_limit_refuses_and_says_which_it_is(budget, said):
    now = [0.0]
    account = Account(budget, clock=lambda: now[0])
    spend(account, tokens=50)
    now[0] = 1.5
    with pytest.raises(BudgetError, match=said):
        spend(account, tokens=1)


def test_a_child_cannot_spend_what_its_parent_has_not():
    parent = Account(Budget(usd=1.0))
    one, two = parent.share(0.5), parent.share(0.5)
    spend(one, 0.5)
    with pytest.raises(BudgetError, match=r"\$0.5 of \$0.5"):
        spend(one, 0.1)
    spend(parent, 0.3)
    with pytest.raises(BudgetError, match=r"\$0.8 of \$1"):
        spend(two, 0.4)
    assert parent.left("usd") == pytest.approx(0.2)


def test_warnings_come_once_for_each_limit():
    now, warned = [0.0], []
    account = Account(
        Budget(usd=1, tokens=100, calls=10, seconds=10),
        on_warning=lambda *facts: warned.append(facts),
        clock=lambda: now[0],
    )
    for n in range(10):
        now[0] = n
        spend(account.share(0.99) if n % 2 else account, 0.09, 8)
    assert [one[0] for one in warned] == ["calls", "usd", "seconds", "tokens"]
    assert all(used >= 0.8 * limit for _, used, limit in warned)


@pytest.mark.parametrize("field", [*METERED, "iterations"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "many"])
def test_a_limit_that_cannot_be_is_refused(field, value):
    with pytest.raises(ConfigError, match=field):
        Budget(**{field: value})


@pytest.mark.parametrize("seed", range(20))
def test_an_account_never_overspends_and_holds_nothing_in_the_end(seed):
    """Calls open and end in any order, in any depth, with errors, at less than was set aside."""
    dice = random.Random(seed)
    root = Account(Budget(usd=dice.uniform(0.1, 2), tokens=dice.randrange(100, 3000), calls=60))
    accounts, open_calls, refused = [root], [], 0
    for _ in range(300):
        account, what = dice.choice(accounts), dice.random()
        if what < 0.1 and len(accounts) < 8:
            accounts.append(account.share(dice.uniform(0.1, 0.9)))
        elif what < 0.6:
            call = account.call(usd=dice.choice([0.01, 0.1, 0.0333]), tokens=dice.randrange(60))
            try:
                open_calls.append((call, call.__enter__()))
            except BudgetError:
                refused += 1
        elif open_calls:
            _end(dice, *open_calls.pop(dice.randrange(len(open_calls))))
        for one in accounts:
            _check(one)
    while open_calls:
        _end(dice, *open_calls.pop())
    assert refused
    assert all(one.held(what) == 0 for one in accounts for what in METERED)


def _end(dice, call, bill):
    bill.usd *= dice.random()
    bill.tokens = dice.randrange(bill.tokens + 1)
    error = RuntimeError("the call failed") if dice.random() < 0.3 else None
    assert not call.__exit__(error and type(error), error, None), "an error goes on"


def _check(account):
    for what in ("usd", "tokens", "calls"):
        limit = getattr(account.budget, what)
        if limit is not None:
            assert account.spent(what) + account.held(what) <= limit + 1e-9
        assert account.held(what) >= 0
