"""What models cost, in USD per million tokens: a short table, which a file can overrule."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.config import expand_home, variable
from atoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from atoll.agent.rlm.models.types import Usage

_MILLION = 1_000_000
_SNAPSHOT = re.compile(r"-(\d{8}|\d{4}-\d{2}-\d{2}|latest)\Z")
_FIELDS = ("input", "cached", "output", "written", "long_from", "long_input", "long_output")


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens."""

    input: float
    cached: float
    output: float
    written: float | None = None
    """Input that is written to the cache; None: as other input."""
    long_from: int | None = None
    """A prompt of more tokens than these costs more, all of it."""
    long_input: float = 2.0
    """So many times as much for its input, cached or not."""
    long_output: float = 1.5

    def of(self, usage: Usage) -> float:
        """Return what that usage costs."""
        plain = max(0, usage.input_tokens - usage.cached_tokens - usage.written_tokens)
        written = self.input if self.written is None else self.written
        read = plain * self.input + usage.cached_tokens * self.cached
        read += usage.written_tokens * written
        made = usage.output_tokens * self.output
        if self.long_from is not None and usage.input_tokens > self.long_from:
            read, made = read * self.long_input, made * self.long_output
        return (read + made) / _MILLION


FREE = Price(0.0, 0.0, 0.0)


def price_of(
    name: str, *, local: bool = False, prices: Mapping[str, Price] | None = None
) -> Price | None:
    """Return the price of `provider/model` or a dated snapshot of it; None: not priced.

    What `prices` or the file of ATOLL_PRICES says comes first. A model on this machine is free.
    """
    given = prices if prices is not None else _from_environment()
    plain = _SNAPSHOT.sub("", name)
    for table in (given, {name: FREE} if local else TABLE):
        for candidate in (name, plain):
            if candidate in table:
                return table[candidate]
    return None


def load(path: Path) -> dict[str, Price]:
    """Prices from a JSON file: {"provider/model": {"input": 1.25, "cached": 0.1, "output": 10}}."""
    try:
        rows = json.loads(path.read_bytes())
    except OSError as exc:
        raise ConfigError(f"the prices in {path} cannot be read: {exc.strerror}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"the prices in {path} are not JSON") from None
    if not isinstance(rows, dict):
        raise ConfigError(f"the prices in {path} must be one object, by provider/model")
    return {name: _price(path, name, row) for name, row in rows.items()}


def _from_environment() -> dict[str, Price]:
    path = variable("ATOLL_PRICES")
    return load(expand_home(path).absolute()) if path else {}


def _price(path: Path, name: str, row: Any) -> Price:
    if not isinstance(row, dict) or not row.keys() <= set(_FIELDS) or not _are_prices(row):
        fields = ", ".join(_FIELDS)
        raise ConfigError(f"{path}: the price of {name!r} must be numbers from 0 on, of: {fields}")
    if "input" not in row or "output" not in row:
        raise ConfigError(f"{path}: the price of {name!r} lacks input or output")
    return Price(**{"cached": row["input"], **row})


def _are_prices(row: Mapping[str, Any]) -> bool:
    return all(type(value) in {int, float} and 0 <= value < 1e9 for value in row.values())


def _openai(million_in: float, cached: float, out: float) -> Price:
    return Price(million_in, cached, out)


def _claude(million_in: float, cached: float, out: float) -> Price:
    return Price(million_in, cached, out, million_in * 1.25)


# List prices of ordinary calls, of models whose prices have long been public. Prices change, and
# newer models are not here: give ATOLL_PRICES, or the cost is told as not known.
TABLE: dict[str, Price] = {
    "openai/gpt-4o": _openai(2.5, 1.25, 10),
    "openai/gpt-4o-mini": _openai(0.15, 0.075, 0.6),
    "openai/gpt-4.1": _openai(2, 0.5, 8),
    "openai/gpt-4.1-mini": _openai(0.4, 0.1, 1.6),
    "openai/gpt-4.1-nano": _openai(0.1, 0.025, 0.4),
    "openai/o3": _openai(2, 0.5, 8),
    "openai/o4-mini": _openai(1.1, 0.275, 4.4),
    "openai/gpt-5": _openai(1.25, 0.125, 10),
    "openai/gpt-5-mini": _openai(0.25, 0.025, 2),
    "openai/gpt-5-nano": _openai(0.05, 0.005, 0.4),
    "anthropic/claude-opus-4-1": _claude(15, 1.5, 75),
    "anthropic/claude-sonnet-4-5": _claude(3, 0.3, 15),
    "anthropic/claude-haiku-4-5": _claude(1, 0.1, 5),
}
