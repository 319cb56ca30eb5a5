"""The loop of one run: the model writes cells, is told what they gave, until it answers.

    question + description ──▶ model ──▶ cells ──▶ environment ──▶ observation ──▶ model ...
                                              └─ llm_query, rlm_query ──▶ subcalls
A limit that is reached ends it with an answer all the same, which says that it was forced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.environment.setting import split
from atoll.rlm import prompts
from atoll.rlm.budget import BudgetError
from atoll.rlm.history import History
from atoll.rlm.models.types import Message
from atoll.rlm.parse import parse
from atoll.rlm.trajectory.events import CodeRan, Refused
from atoll.types import Outcome

if TYPE_CHECKING:
    from atoll.environment.core import REPLEnvironment
    from atoll.environment.types import Turn
    from atoll.explore.evidence import Evidence
    from atoll.explore.ledger import Coverage
    from atoll.rlm.asking import Asker
    from atoll.rlm.parse import Reply
    from atoll.rlm.settings import Settings

LAST_TOKENS = 1_024
"""Of the answer that is asked for when a limit is reached."""
MOST_IDLE = 3
"""Replies without any code after which a model is taken at its word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a loop came to its answer."""

    how: str
    text: str
    value: Any = None
    evidence: tuple[Evidence, ...] = ()
    coverage: Coverage | None = None
    forced: bool = False
    turns: int = 0
    way: str = "loop"
    why: str = ""


class Loop:
    """One conversation with one model over one context."""

    def __init__(self, settings: Settings, asker: Asker, env: REPLEnvironment) -> None:
        self._settings, self._asker, self._env = settings, asker, env
        self._turns, self._idle = 0, 0
        self._seen: set[str] = set()
        self._said = ""
        self._cell_ms = split(None, settings.environment)[0].timeout_ms

    async def run(self, question: str, first: str) -> Ending:
        """Work on a question until there is an answer, or a limit; `first` tells what there is."""
        message = prompts.first_message(question, first, self._env.submit_fields)
        most = self._settings.history_tokens
        history = History(prompts.SYSTEM, message, most, prompts.EXAMPLE)
        try:
            return await self._converse(history)
        except BudgetError as exc:
            return await self._forced(history, str(exc))

    async def _converse(self, history: History) -> Ending:
        most = self._asker.account.budget.iterations
        while self._turns < most:
            self._turns += 1
            text = self._said = await self._ask(history)
            reply = parse(text)
            observations = [await self._cell(code) for code in reply.cells]
            observations += await self._take_prose(reply)
            if ending := self._ending(text, reply):
                return ending
            said = "\n".join(observations) or prompts.NO_CODE
            history.add(text, f"{said}\n(turn {self._turns} of at most {most})")
        return await self._forced(history, f"{most} turns were made")

    async def _ask(self, history: History) -> str:
        asker = self._asker
        call = asker.writer.new_call()
        model = self._settings.model_at(asker.depth)
        completion = await asker.ask(model, history.messages, call, self._settings.max_tokens)
        return completion.text

    async def _cell(self, code: str) -> str:
        """Run a cell, unless an earlier one of the same reply has given the answer."""
        if self._env.final is not None:
            return ""
        repeated = code.strip() in self._seen
        self._seen.add(code.strip())
        turn = await self._env.execute(code, timeout_ms=self._timeout_ms())
        self._tell(turn, repeated=repeated)
        note = f"\n{prompts.REPEATED}" if repeated and turn.final is None else ""
        return turn.observation + note

    def _timeout_ms(self) -> float:
        """The time of one cell: as its sandbox has it, or what is left of the run's."""
        self._asker.account.check("seconds")
        return min(self._cell_ms, self._asker.account.left("seconds") * 1000)

    async def _take_prose(self, reply: Reply) -> list[str]:
        """FINAL(...) and FINAL_VAR(...) outside of code, taken as if they had been in it.

        What is wrong with them, if they are not taken.
        """
        if self._env.final is None and reply.variable is not None:
            return [await self._cell(f"FINAL_VAR({reply.variable!r})")]
        if self._env.final is None and reply.answer is not None:
            trouble = await self._env.take_answer(reply.answer)
            return [] if trouble is None else [trouble]
        return []

    def _ending(self, text: str, reply: Reply) -> Ending | None:
        if (final := self._env.final) is not None:
            return Ending(
                how=final.how,
                text=final.text,
                value=final.value,
                evidence=final.evidence,
                coverage=final.coverage,
                turns=self._turns,
            )
        self._idle = 0 if reply.cells else self._idle + 1
        if self._idle < MOST_IDLE:
            return None
        refused = reply.answer is not None or self._env.submit_fields is not None
        return self._plain(text if reply.answer is None else reply.answer, forced=refused)

    async def _forced(self, history: History, why: str) -> Ending:
        """One last question if it can be paid for; else what the model said last."""
        place: dict[str, Any] = {"parent": self._asker.parent, "depth": self._asker.depth}
        self._asker.writer.emit(Refused(what="another turn", why=why, **place))
        messages = (*history.messages, Message("user", prompts.LAST.format(why=why)))
        try:
            completion = await self._asker.ask(
                self._settings.model_at(self._asker.depth),
                messages,
                self._asker.writer.new_call(),
                min(LAST_TOKENS, self._settings.max_tokens),
            )
        except BudgetError:
            return self._plain(self._said, forced=True)
        return self._plain(completion.text, forced=True)

    def _plain(self, text: str, *, forced: bool) -> Ending:
        return Ending(
            how="text",
            text=text,
            coverage=self._env.coverage,
            forced=forced,
            turns=self._turns,
        )

    def _tell(self, turn: Turn, *, repeated: bool) -> None:
        result = turn.result
        answered = turn.final is not None and result.kind is Outcome.EXITED  # as FINAL ends a cell
        self._asker.writer.emit(
            CodeRan(
                parent=self._asker.parent,
                depth=self._asker.depth,
                turn=turn.number,
                code=turn.code,
                observation=turn.observation,
                outcome=(Outcome.OK if answered else result.kind).value,
                duration_ms=result.duration_ms,
                isolation="" if result.isolation is None else str(result.isolation),
                spilled=None if turn.spilled is None else str(turn.spilled),
                repeated=repeated,
            )
        )
