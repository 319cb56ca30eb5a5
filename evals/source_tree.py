"""A generated source tree, and a question about which file of it a called function is in."""

from __future__ import annotations

import random

from evals.tasks import PATH, Task

PARTS = ("engine", "billing", "storage", "network", "planner", "reports", "sensors", "users")
VERBS = ("load", "check", "merge", "plan", "send", "scan", "trim", "move", "open", "seal")
NOUNS = ("harbour", "ledger", "turbine", "cargo", "invoice", "route", "signal", "crew", "vault")
BODY = '''
def {name}(value: int, factor: int = {factor}) -> int:
    """Return the {noun} for a value; see also {other}."""
    total = value * factor
    for step in range({steps}):
        total += step % {factor}
    return {callee}(total) if total > {limit} else total
'''
_FUNCTION_BYTES = 260
_FUNCTIONS_PER_FILE = 8


def code(seed: int, size: int) -> Task:
    """Ask where the function that another one calls is defined: two look-ups in a tree."""
    dice = random.Random(f"code {seed} {size}")
    count = max(2 * _FUNCTIONS_PER_FILE, size // _FUNCTION_BYTES)
    names = [f"{dice.choice(VERBS)}_{dice.choice(NOUNS)}_{n}" for n in range(count)]
    dice.shuffle(names)
    files: dict[str, str] = {}
    homes: dict[str, str] = {}
    callees: dict[str, str] = {}
    for at in range(0, count, _FUNCTIONS_PER_FILE):
        own = names[at : at + _FUNCTIONS_PER_FILE]
        path = f"{dice.choice(PARTS)}/{_word(at // _FUNCTIONS_PER_FILE)}.py"
        callees |= {name: dice.choice(names) for name in own}
        homes |= dict.fromkeys(own, path)
        files[path] = '"""Generated."""\n' + "".join(
            _function(dice, name, callees[name], names) for name in own
        )
    caller = dice.choice([name for name in names if callees[name] != name])
    return Task(
        family="code",
        seed=seed,
        question=f"The function {caller} calls another function of this source tree. Which file "
        "defines that other function? Answer with the path alone, such as engine/a_b.py.",
        answer=frozenset({homes[callees[caller]]}),
        pattern=PATH,
        files=files,
    )


def _function(dice: random.Random, name: str, callee: str, names: list[str]) -> str:
    return BODY.format(
        name=name,
        callee=callee,
        other=dice.choice(names),
        noun=dice.choice(NOUNS),
        factor=dice.randint(2, 99),
        steps=dice.randint(2, 99),
        limit=dice.randint(100, 9_999),
    )


def _word(number: int) -> str:
    """Return a number in letters: the names of files have no digits."""
    letters = ""
    while True:
        number, rest = divmod(number, 26)
        letters = chr(ord("a") + rest) + letters
        if number == 0:
            return f"part_{letters}"
