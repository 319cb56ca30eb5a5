"""The loop of one run: the model writes cells, is shown what they gave, until it answers.

    question + description ──▶ model ──▶ cells ──▶ environment ──▶ observation ──▶ model ...
                                              └─ llm_query, rlm_query ──▶ subcalls
One call is kept back from the start. If a limit is reached, it asks for an answer in prose.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from atoll.agent.rlm import prompts
from atoll.agent.rlm.budget import UNLIMITED, BudgetError, amount_text
from atoll.agent.rlm.history import History
from atoll.agent.rlm.model_calls import MARGIN, prompt_tokens, would_cost
from atoll.agent.rlm.models.types import Message
from atoll.agent.rlm.replies import parse, plain_answer
from atoll.agent.rlm.types import Ended, Ending
from atoll.agent.trajectory.events import CodeRan, Refused
from atoll.text.amounts import counted
from atoll.text.quoting import quoted
from atoll.types import Outcome

if TYPE_CHECKING:
    from atoll.agent.environment.core import REPLEnvironment
    from atoll.agent.environment.types import Final, Turn
    from atoll.agent.rlm.budget import Kept
    from atoll.agent.rlm.model_calls import ModelCalls
    from atoll.agent.rlm.models.types import Completion
    from atoll.agent.rlm.options import RLMConfig
    from atoll.agent.rlm.replies import Reply
    from atoll.agent.rlm.subcalls import Subcalls

LAST_TOKENS, LEAST_LAST_TOKENS = 1_024, 256
"""Tokens of the answer that is asked for when a limit is reached: at most, and kept back."""
LAST_NOTES = 500
"""Tokens of what was seen that the last call has room for at least."""
LAST_SECONDS, LAST_SHARE = 60.0, 0.2
"""Seconds kept back for the last call: so many, or this share of the budget if that is less."""
MOST_CALLS = 200
"""Tool calls of one turn that the trajectory has."""
LEAST_THOUGHT = 20
"""Tokens of a reply without a text from which on they must have been reasoning."""
MOST_NODES, FEW_NODES = 20, 6
"""Calls in the research tree that a model is shown after each turn; a small model gets few."""
MOST_IDLE = 3
"""Replies without code in a row after which the run ends."""


class Loop:
    """One conversation with one model over one context."""

    def __init__(
        self,
        config: RLMConfig,
        calls: ModelCalls,
        env: REPLEnvironment,
        subcalls: Subcalls,
    ) -> None:
        self._config, self._calls, self._env, self._subcalls = config, calls, env, subcalls
        self._model = calls.models.at(calls.depth)
        self._profile = prompts.chosen_profile(config.profile, self._model.name)
        self._turns, self._idle = 0, 0
        self._seen: set[str] = set()
        self._question = self._reminder = self._hint = ""
        self._cell_ms = config.environment.timeout_ms

    async def run(self, question: str, first: str) -> Ending:
        """Work on a question until there is an answer or a limit; `first` describes the context."""
        self._question = question
        self._reminder = prompts.reminder(self._profile, question)
        history = self._history(question, first)
        kept = self._keep_last_call(history)
        history.begin_again(self._first_message(question, first))  # as less is left now
        try:
            return await self._converse(history, kept)
        except BudgetError as exc:
            return await self._forced(history, str(exc), kept)
        finally:
            kept.free()

    def _history(self, question: str, first: str) -> History:
        """Return the conversation as it begins."""
        shown = prompts.example_of(self._profile, wanted=self._config.examples)
        system = self._system(example=bool(shown))
        message = self._first_message(question, first)
        return History(system, message, self._config.history_tokens, shown)

    def _first_message(self, question: str, first: str) -> str:
        fields, is_short = self._env.submit_fields, self._profile.is_short
        return prompts.first_message(question, first, self._limits(), fields, is_short=is_short)

    def _system(self, *, example: bool) -> str:
        """Return the system prompt, with the functions that this run may use."""
        deepest = self._calls.depth >= self._config.max_depth
        forbidden = {"rlm_query"} if deepest else set()
        tools = self._env.tool_list(without=self._profile.unlisted | forbidden)
        if self._config.system_prompt is not None:
            return self._config.system_prompt.replace("{tools}", tools)
        return prompts.system_prompt(
            self._profile,
            tools,
            part=self._config.query_characters // 2,
            example=example,
            instructions=self._config.instructions,
        )

    def _limits(self) -> str:
        """Return what the run may use, as far as it is the same when the run is replayed."""
        budget, config = self._calls.account.budget, self._config
        money = self._money()
        last = ", and what one last answer takes" if money else ""
        told = [f"You have {counted(budget.iterations, 'turns')}{money}{last}."]
        if "llm_query" not in self._profile.unlisted:
            told += [f"One llm_query takes about {config.query_characters:,} characters."]
        deeper = config.max_depth - self._calls.depth
        told += [f"Runs of rlm_query may be nested {deeper} deep."] if deeper > 1 else []
        return " ".join(told)

    def _money(self) -> str:
        """Return what is left of the limits that are set, but for time."""
        account = self._calls.account
        left = {what: account.left(what) for what in ("usd", "tokens", "calls")}
        shown = {what: n for what, n in left.items() if n < (100 if what == "calls" else UNLIMITED)}
        return "".join(f", {amount_text(what, n)} left" for what, n in shown.items())

    def _keep_last_call(self, history: History) -> Kept:
        """Keep back what the shortest last call costs, so that a forced answer can be asked for."""
        account = self._calls.account
        prompt = prompt_tokens(history.brief(prompts.LAST_SYSTEM, prompts.LAST, 0)) + LAST_NOTES
        limit = account.budget.seconds
        return account.keep_back(
            calls=1,
            tokens=prompt + LEAST_LAST_TOKENS,
            usd=would_cost(self._model, prompt, LEAST_LAST_TOKENS),
            seconds=0.0 if limit is None else min(LAST_SECONDS, LAST_SHARE * limit),
        )

    async def _converse(self, history: History, kept: Kept) -> Ending:
        most = self._calls.account.budget.iterations
        while self._turns < most:
            self._turns += 1
            self._subcalls.begin_turn()
            self._hint = ""
            completion = await self._ask(history.messages, self._config.max_tokens)
            reply = parse(completion.text, is_cut=completion.finish == "length")
            observations = [await self._cell(code) for code in reply.cells]
            observations += await self._take_prose(reply)
            if ending := await self._ending(completion, reply):
                return ending
            observations += self._advice(completion, reply, observations)
            said = "\n".join(one for one in observations if one)
            turns = f"(turn {self._turns} of at most {most}{self._money()})"
            note = f"{turns}{self._hint or self._reminder}"
            history.add(completion.text, said, note, await self._research())
        return await self._forced(
            history, f"{counted(most, 'turns')} {'was' if most == 1 else 'were'} made", kept
        )

    async def _ask(self, messages: tuple[Message, ...], max_tokens: int) -> Completion:
        call = self._calls.writer.new_call()
        return await self._calls.ask(self._model, messages, call, max_tokens)

    async def _cell(self, code: str) -> str:
        """Run a cell, unless an earlier one of the same reply has given the answer."""
        if self._env.final is not None:
            return ""
        repeated = code.strip() in self._seen
        self._seen.add(code.strip())
        turn = await self._env.execute(code, timeout_ms=self._timeout_ms())
        self._emit(turn, repeated=repeated)
        notes = [f"({note})" for note in self._subcalls.notes()]
        if repeated and turn.final is None:
            self._hint = "\n" + prompts.repeated(self._question, self._seen)
        return "\n".join([quoted("output", turn.observation), *notes])

    async def _research(self) -> str:
        """Return the tree of what was looked at, for the next message; "" below three nodes."""
        most = FEW_NODES if self._profile.is_short else MOST_NODES
        tree = await asyncio.to_thread(self._env.research.tree, most)
        return "" if tree is None else quoted("research", tree)

    def _timeout_ms(self) -> float:
        """Return the time of one cell: that of its sandbox, or what is left of the run's."""
        self._calls.account.check("seconds")
        return min(self._cell_ms, self._calls.account.left("seconds") * 1000)

    async def _take_prose(self, reply: Reply) -> list[str]:
        """Take FINAL(...) and FINAL_VAR(...) outside of code as if they had been in it.

        Return what is wrong with them, if they are not taken.
        """
        if self._env.final is None and await self._names_variable(reply):
            return [await self._cell(f"FINAL_VAR({reply.variable!r})")]
        if self._env.final is None and reply.answer is not None:
            trouble = await self._env.take_answer(reply.answer)
            return [] if trouble is None else [trouble]
        return []

    async def _names_variable(self, reply: Reply) -> bool:
        """Return whether an answer is given by FINAL_VAR, or by FINAL with a variable's name."""
        if reply.variable is None or reply.answer is None:
            return reply.variable is not None
        return reply.variable in await self._env.variable_names()

    async def _ending(self, completion: Completion, reply: Reply) -> Ending | None:
        """Return the ending, if there is an answer or the model has stopped writing code."""
        self._idle = 0 if reply.cells else self._idle + 1
        if self._env.final is None and self._idle >= MOST_IDLE:
            trouble, offered = await self._take_idle(completion, reply)
            if trouble and offered:
                return self._ended(Ended.REFUSED, offered, trouble)
            if trouble:
                return self._ended(Ended.UNANSWERED, "", trouble)
        final = self._env.final
        if final is None:
            return None
        return self._given(final, *(self._subcalls.unsure(final.text) or (Ended.ANSWERED, "")))

    def _given(self, final: Final, ended: Ended, reason: str) -> Ending:
        """Return the ending of a run whose code has given an answer."""
        return Ending(
            ended=ended,
            reason=reason,
            how=final.how,
            text=final.text,
            value=final.value,
            evidence=final.evidence,
            coverage=final.coverage,
            ledger=self._env.ledger,
            turns=self._turns,
        )

    async def _take_idle(self, completion: Completion, reply: Reply) -> tuple[str | None, str]:
        """Take a reply without code as the answer; return what is wrong with it, and its text."""
        if not completion.text.strip():
            return f"{MOST_IDLE} replies in a row had no code, the last one was empty", ""
        if completion.finish == "length":
            most = completion.usage.output_tokens
            return (
                f"{MOST_IDLE} replies in a row had no code, the last was cut at {most:,} tokens",
                "",
            )
        offered = reply.prose if reply.answer is None else reply.answer
        return await self._env.take_answer(offered, "text"), offered

    def _advice(self, completion: Completion, reply: Reply, observed: list[str]) -> list[str]:
        """Return what to tell a model whose reply was empty, cut off, or without code."""
        tokens = completion.usage.output_tokens
        if completion.finish == "length" and completion.text.strip():
            return [prompts.CUT.format(tokens=tokens)]
        if not completion.text.strip():
            thought = completion.finish == "length" or tokens >= LEAST_THOUGHT
            return [prompts.ONLY_THOUGHT.format(tokens=tokens) if thought else prompts.EMPTY]
        if reply.cells or observed:
            return []
        return [prompts.NO_CODE_AGAIN if self._idle == MOST_IDLE - 1 else prompts.NO_CODE]

    async def _forced(self, history: History, why: str, kept: Kept) -> Ending:
        """Ask for an answer in prose, in the call that was kept back."""
        kept.free()
        place: dict[str, Any] = {"parent": self._calls.parent, "depth": self._calls.depth}
        self._calls.writer.emit(Refused(what="another turn", why=why, **place))
        try:
            completion = await self._ask_last(history, prompts.LAST.format(why=why))
        except BudgetError as exc:
            return self._ended(Ended.UNANSWERED, "", f"{why}; and no last answer: {exc}")
        is_cut = completion.finish == "length"
        await self._run_last(parse(completion.text, is_cut=is_cut))
        if self._env.final is not None:
            return self._given(self._env.final, Ended.FORCED, why)
        text = plain_answer(completion.text)
        if not text:
            what = "cut off" if is_cut else "code" if completion.text.strip() else "empty"
            return self._ended(Ended.UNANSWERED, "", f"{why}; and the last reply was {what}")
        cut = f"; and the last reply was cut off after {completion.usage.output_tokens:,} tokens"
        return self._ended(Ended.FORCED, text, why + cut * is_cut)

    async def _run_last(self, reply: Reply) -> None:
        """Run a last reply that gives its answer by code, such as FINAL(total).

        No call of a model is left, so that code which asks one fails. What it prints is not shown.
        """
        last = (f"FINAL_VAR({reply.variable!r})",) if await self._names_variable(reply) else ()
        cells = (*reply.cells, *last)
        if not any(name in code for code in cells for name in ("FINAL", "SUBMIT")):
            return
        with contextlib.suppress(BudgetError):  # there may be no time left
            for code in cells:
                await self._cell(code)

    async def _ask_last(self, history: History, last: str) -> Completion:
        """Send the whole conversation if it can be paid for, else the newest part of it.

        A small model is sent what was observed, without its code.
        """
        most = min(LAST_TOKENS, self._config.max_tokens)
        whole = (*history.messages, Message("user", last))
        account, size = self._calls.account, prompt_tokens(whole)
        dear = would_cost(self._model, size, most) > account.left("usd")
        is_short = self._profile.is_short
        if dear or is_short or size + most > account.left("tokens"):
            part = history.observed if is_short else history.brief
            least = prompt_tokens(part(prompts.LAST_SYSTEM, last, 0))
            room = account.left("tokens") - LEAST_LAST_TOKENS
            room = min(room, least + LAST_NOTES) if dear else room
            room = min(room / MARGIN, self._config.history_tokens)
            whole = part(prompts.LAST_SYSTEM, last, room)
        return await self._ask(whole, most)

    def _ended(self, ended: Ended, text: str, reason: str) -> Ending:
        return Ending(
            ended=ended,
            text=text,
            reason=reason,
            coverage=self._env.coverage,
            ledger=self._env.ledger,
            turns=self._turns,
        )

    def _emit(self, turn: Turn, *, repeated: bool) -> None:
        result, use = turn.result, turn.result.network
        answered = turn.final is not None and result.kind is Outcome.EXITED  # as FINAL ends a cell
        self._calls.writer.emit(
            CodeRan(
                parent=self._calls.parent,
                depth=self._calls.depth,
                turn=turn.number,
                code=turn.code,
                observation=turn.observation,
                outcome=(Outcome.OK if answered else result.kind).value,
                duration_ms=result.duration_ms,
                isolation="" if result.isolation is None else str(result.isolation),
                spilled=None if turn.spilled is None else str(turn.spilled),
                repeated=repeated,
                network=tuple(one.facts() for one in use.requests) if use else (),
                calls=tuple(one.to_dict() for one in turn.calls[:MOST_CALLS]),
            )
        )
