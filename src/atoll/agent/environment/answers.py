"""Take a final answer: refuse early answers and wrong shapes, check the quotes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atoll.agent.environment.turns import Final
from atoll.guest.shared.values import Opaque
from atoll.search import evidence
from atoll.text.toon import to_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.agent.environment.options import EnvironmentConfig
    from atoll.agent.environment.tools.invocations import InvocationLog
    from atoll.search.coverage import CoverageLog
    from atoll.search.index import ContextIndex

WAYS = ("FINAL", "FINAL_VAR", "SUBMIT", "answer", "text")
NAMED_QUOTES = 3
"""Quotes that are not in the context, as far as a model is told of them."""
FUNCTION_TYPES = ("function", "builtin_function_or_method", "method", "type", "module")
TYPE_NAMES: Mapping[type, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    list: "a list",
    dict: "a dict",
}


@dataclass
class Answers:
    """The host's end of FINAL, FINAL_VAR, SUBMIT and the dict `answer`."""

    _config: EnvironmentConfig
    _log: InvocationLog
    _ledger: CoverageLog
    _index: ContextIndex | None
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    """A guest may send thousands of answers, and others need threads too."""
    _told_of_quotes: bool = False
    final: Final | None = None

    def forget(self) -> None:
        """Forget the answer: another question is asked."""
        self.final, self._told_of_quotes = None, False

    async def take(self, how: str, value: Any, quotes: Any = ()) -> None:
        """Accept an answer; ValueError with what the model has to do first."""
        if how not in WAYS:
            raise ValueError("an answer is given by FINAL(answer), FINAL_VAR(name) or SUBMIT(...)")
        wanted, done = self._config.min_exploration_calls, self._log.explored
        if self._config.require_exploration_before_final and done < wanted:
            raise ValueError(
                f"look before you answer: {wanted} call(s) of peek, grep or their like are asked "
                f"for, and there were {done}. Call grep(pattern) or peek(n), then FINAL again"
            )
        if is_empty(value):
            raise ValueError(
                f"{how} was given {value!r:.20}, which is no answer: give one in words, and if the "
                "text does not say, answer that"
            )
        if isinstance(value, Opaque) and value.type_name in FUNCTION_TYPES:
            raise ValueError(f"{how} was given a {value.type_name}: give what it returns")
        if self._config.submit_fields is not None:
            _check_fields(value, self._config.submit_fields, how)
        async with self._one_at_a_time:
            self.final = await asyncio.to_thread(self._checked, how, value, quotes)

    async def offer(self, how: str, value: Any, quotes: Any = ()) -> str | None:
        """Take an answer; return the reason if it is not taken."""
        if is_empty(value):
            return "the answer was not taken: it is empty"
        try:
            await self.take(how, value, [quotes] if isinstance(quotes, str) else quotes)
        except ValueError as exc:
            return f"the answer was not taken: {exc}"
        return None

    async def take_variable(self, answer: Any) -> str | None:
        """Take the dict `answer` if it is ready; return the reason if it is not taken."""
        if not isinstance(answer, dict) or answer.get("ready") is not True:
            return None
        content, quotes = answer.get("content"), answer.get("quotes") or []
        if is_empty(content):
            return 'answer["ready"] is True, but answer["content"] is empty'
        return await self.offer("answer", content, quotes)

    def _checked(self, how: str, value: Any, quotes: Any) -> Final:
        """Return the answer, with its quotes looked up in the context.

        Refuse quotes that are not in the context, once: the next time they are marked.
        """
        toon = self._config.use_toon_encoding
        text = value if isinstance(value, str) else to_text(value, toon=toon)
        checked: tuple[evidence.Evidence, ...] = ()
        if quotes:
            if self._index is None:
                raise ValueError("there is no context that quotes could be from: leave them out")
            checked = evidence.check(self._index, quotes)
        wrong = [given.quote for given in checked if not given.found]
        if wrong and not self._told_of_quotes:
            self._told_of_quotes = True
            shown = "; ".join(repr(quote[:100]) for quote in wrong[:NAMED_QUOTES])
            raise ValueError(
                f"{len(wrong)} of {len(checked)} quotes are not in the context: {shown}. Quote "
                "word for word, or check the answer; given again, they are marked as not found"
            )
        coverage = self._ledger.coverage()
        return Final(how=how, value=value, text=text, evidence=checked, coverage=coverage)


def is_empty(value: Any) -> bool:
    """Return whether a value is not an answer: None, or a text without words."""
    return value is None or (isinstance(value, str) and not value.strip())


def _check_fields(value: Any, fields: Mapping[str, type], how: str) -> None:
    example = "SUBMIT({})".format(", ".join(f"{name}=..." for name in fields))
    if not isinstance(value, dict):
        raise ValueError(f"the answer has fields, and {how} gave none: call {example}")  # noqa: TRY004
    if wrong := set(fields) ^ set(map(str, value)):
        raise ValueError(f"{', '.join(sorted(wrong))}: missing or unknown; call {example}")
    for name, kind in fields.items():
        accepted = (int, float) if kind is float else kind
        if not isinstance(value[name], accepted) or (
            isinstance(value[name], bool) > (kind is bool)
        ):
            raise ValueError(f"{name} must be {TYPE_NAMES.get(kind, kind.__name__)}")
