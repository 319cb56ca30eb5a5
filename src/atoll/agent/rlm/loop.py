"""The loop of one run: the model writes cells, is shown what they gave, until it answers.

    question + description ──▶ model ──▶ cells ──▶ environment ──▶ observation ──▶ model ...
                                              └─ llm_query, rlm_query ──▶ subcalls
One call is kept back from the start. If a limit is reached, it asks for an answer in prose.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING

from atoll.agent.environment.research.graph import SHOWN_FROM
from atoll.agent.rlm import prompts
from atoll.agent.rlm.budget import UNLIMITED, BudgetError, amount_text
from atoll.agent.rlm.model_calls import MARGIN, prompt_tokens, would_cost
from atoll.agent.rlm.models.types import Message
from atoll.agent.rlm.replies import parse, plain_answer
from atoll.agent.rlm.types import Ended, RunResult
from atoll.agent.trajectory.events import CodeRan, Refused
from atoll.text.amounts import counted
from atoll.text.quoting import quoted
from atoll.text.tokens import estimate
from atoll.types import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.agent.environment.core import REPLEnvironment
    from atoll.agent.environment.turns import Final, Turn
    from atoll.agent.rlm.budget import Kept
    from atoll.agent.rlm.model_calls import ModelCalls
    from atoll.agent.rlm.models.types import Completion
    from atoll.agent.rlm.options import RLMConfig
    from atoll.agent.rlm.replies import Reply
    from atoll.agent.rlm.subcalls import Subcalls


KEPT_OF_OLD = 200
"""Characters of an old message that stay."""
CUT = "\n[cut: it was long ago]"
CUT_TO = 0.75
"""Of the size: if every turn cut a little, no provider could reuse what it has read before."""
RECENT = 4
"""Messages at the end that are never cut."""
_BLOCK_END = re.compile(r"</\w+ [0-9a-f]+>")


class History:
    """System prompt, example, question, then replies and observations in turn."""

    def __init__(
        self, system: str, first: str, most_tokens: int, example: Sequence[str] = ()
    ) -> None:
        """`example` is a conversation before this one: user and assistant in turn."""
        self._messages = [Message("system", system)]
        for at, text in enumerate(example):
            self._messages.append(Message("assistant" if at % 2 else "user", text))
        self._messages.append(Message("user", first))
        self._fixed = len(self._messages)
        self._first, self._most, self._left_out = first, most_tokens, 0
        self._observed: dict[str, None] = {}
        self._newest: tuple[str, str] | None = None
        self._aside = ""

    @property
    def messages(self) -> tuple[Message, ...]:
        """What the model is sent next."""
        if not self._aside:
            return tuple(self._messages)
        *before, last = self._messages
        return (*before, Message(last.role, f"{last.content}\n{self._aside}"))

    def add(self, reply: str, observation: str, note: str = "", aside: str = "") -> None:
        """Add one more turn; the note follows what was observed, and is not part of it.

        `aside` ends the newest message, until the next turn: it is not kept.

        Of a turn that is the same as the one before, only the note is added: a small model that
        sees itself repeat something goes on with it.
        """
        if (reply, observation) == self._newest:
            said = f"{self._messages[-1].content}\n{note}"
            self._messages[-1] = Message("user", said)
        else:
            said = "\n".join(filter(None, (observation, note)))
            self._messages += [Message("assistant", reply), Message("user", said)]
        self._newest = reply, observation
        self._observed.pop(observation, None)  # what was observed twice is new again
        self._observed[observation] = None
        self._aside = aside
        size = estimate(aside) + sum(estimate(message.content) for message in self._messages)
        if size > self._most:
            over = self._shorten(size - int(self._most * CUT_TO))
            self._leave_out(over)

    def brief(self, system: str, last: str, most_tokens: float) -> tuple[Message, ...]:
        """Return a short conversation that ends with `last`: the question and the newest turns.

        The question is always in it; turns are added from the newest back while they fit.
        """
        turns = self._messages[self._fixed :]
        taken: list[Message] = []
        room = most_tokens - sum(map(estimate, (system, self._first, last)))
        for at in range(len(turns) - 2, -1, -2):
            pair = [Message(turn.role, _shortened(turn.content)) for turn in turns[at : at + 2]]
            whole = turns[at : at + 2]
            pair = whole if _size(whole) <= room else pair
            room -= _size(pair)
            if room < 0:
                break
            taken = [*pair, *taken]
        return (
            Message("system", system),
            Message("user", self._first),
            *taken,
            Message("user", last),
        )

    def observed(self, system: str, last: str, most_tokens: float) -> tuple[Message, ...]:
        """Return one message with the question, the newest observations that fit, and `last`.

        The replies are not in it: a small model that sees code goes on with code.
        """
        shown: list[str] = []
        room = most_tokens - sum(map(estimate, (system, self._first, last)))
        for observation in reversed(self._observed):
            room -= estimate(observation)
            if room < 0:
                break
            shown.append(observation)
        text = "\n\n".join((self._first, *reversed(shown), last))
        return Message("system", system), Message("user", text)

    def _shorten(self, over: int) -> int:
        """Shorten messages from the oldest on, until they fit; the last turns stay whole."""
        for at in range(self._fixed, len(self._messages) - RECENT):
            old = self._messages[at]
            if over > 0 and len(old.content) > KEPT_OF_OLD + len(CUT):
                text = _shortened(old.content)
                over -= estimate(old.content) - estimate(text)
                self._messages[at] = Message(old.role, text)
        return over

    def _leave_out(self, over: int) -> None:
        """Leave out whole turns, where shortening was not enough."""
        begin = self._fixed
        while over > 0 and len(self._messages) > begin + RECENT:
            over -= sum(estimate(message.content) for message in self._messages[begin : begin + 2])
            del self._messages[begin : begin + 2]
            self._left_out += 1
            text = f"{self._first}\n\n[{self._left_out} earlier turns are left out]"
            self._messages[begin - 1] = Message("user", text)


def _shortened(text: str) -> str:
    """Return the beginning of a text; a block that was cut open is closed by its own tag."""
    if len(text) <= KEPT_OF_OLD + len(CUT):
        return text
    head = text[:KEPT_OF_OLD]
    ends = _BLOCK_END.findall(text[KEPT_OF_OLD:])
    opened = f"<{ends[-1][2:]}" in head if ends else False
    return head + CUT + (f"\n{ends[-1]}" if opened else "")


def _size(messages: Sequence[Message]) -> int:
    return sum(estimate(message.content) for message in messages)


LAST_TOKENS, LEAST_LAST_TOKENS = 1_024, 256
"""Tokens of the answer that is asked for when a limit is reached: at most, and kept back."""
LAST_NOTES = 500
"""Tokens of what was seen that the last call has room for at least."""
LAST_SECONDS, LAST_SHARE = 60.0, 0.2
"""Seconds kept back for the last call: so many, or this share of the budget if that is less."""
MAX_CALLS = 200
"""Tool calls of one turn that the trajectory has."""
LEAST_THOUGHT = 20
"""Tokens of a reply without a text from which on they must have been reasoning."""
MAX_NODES, FEW_NODES = 20, 3
"""Calls in the research tree that a model is shown after each turn; a small model gets few."""
MAX_IDLE = 3
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
        self.profile = prompts.profile_of(self._model.name, config.profile)
        self._turns, self._idle = 0, 0
        self._seen: set[str] = set()
        self._question = self._reminder = self._hint = ""
        self._cell_ms = config.environment.timeout_ms

    async def run(self, question: str, first: str) -> RunResult:
        """Work on a question until there is an answer or a limit; `first` describes the context."""
        self._question = question
        self._reminder = prompts.reminder(self.profile, question)
        example = self.profile.example
        if self._config.examples is not None:
            example = (example or prompts.EXAMPLE) if self._config.examples else ()
        system = self._system(example=bool(example))
        message = self._first_message(question, first)
        kept = self._keep_last_call(message)
        if self._money():  # less is left now
            message = self._first_message(question, first)
        history = History(system, message, self._config.history_tokens, example)
        try:
            return await self._converse(history, kept)
        except BudgetError as exc:
            return await self._forced(history, str(exc), kept)
        finally:
            kept.free()

    def _first_message(self, question: str, first: str) -> str:
        fields, is_short = self._env.submit_fields, self.profile.is_short
        return prompts.first_message(question, first, self._limits(), fields, is_short=is_short)

    def _system(self, *, example: bool) -> str:
        """Return the system prompt, with the functions that this run may use."""
        deepest = self._calls.depth >= self._config.max_depth
        forbidden = {"rlm_query"} if deepest else set()
        tools = self._env.tool_list(without=self.profile.unlisted | forbidden)
        if self._config.system_prompt is not None:
            return self._config.system_prompt.replace("{tools}", tools)
        return prompts.system_prompt(
            self.profile,
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
        sentences = [f"You have {counted(budget.iterations, 'turns')}{money}{last}."]
        if "llm_query" not in self.profile.unlisted:
            sentences += [f"One llm_query takes about {config.query_characters:,} characters."]
        deeper = config.max_depth - self._calls.depth
        sentences += [f"Runs of rlm_query may be nested {deeper} deep."] if deeper > 1 else []
        return " ".join(sentences)

    def _money(self) -> str:
        """Return the amounts left of the limits that are set, without time."""
        account, shown = self._calls.account, ""
        for what, most in (("usd", UNLIMITED), ("tokens", UNLIMITED), ("calls", 100)):
            if (left := account.left(what)) < most:
                shown += f", {amount_text(what, left)} left"
        return shown

    def _keep_last_call(self, first: str) -> Kept:
        """Keep back what the shortest last call costs, so that a forced answer can be asked for."""
        account = self._calls.account
        last = (Message("system", prompts.LAST_SYSTEM), Message("user", first))
        prompt = prompt_tokens((*last, Message("user", prompts.LAST))) + LAST_NOTES
        limit = account.budget.seconds
        return account.keep_back(
            calls=1,
            tokens=prompt + LEAST_LAST_TOKENS,
            usd=would_cost(self._model, prompt, LEAST_LAST_TOKENS),
            seconds=0.0 if limit is None else min(LAST_SECONDS, LAST_SHARE * limit),
        )

    async def _converse(self, history: History, kept: Kept) -> RunResult:
        most = self._calls.account.budget.iterations
        while self._turns < most:
            self._turns += 1
            self._subcalls.begin_turn()
            self._hint = ""
            completion = await self._calls.ask(
                self._model, history.messages, self._config.max_tokens
            )
            reply = parse(completion.text, is_cut=completion.finish == "length")
            observations = [await self._cell(code) for code in reply.cells]
            if self._env.final is None and (reply.variable or reply.answer) is not None:
                observations.append(await self._take_prose(reply))
            if ending := await self._ending(completion, reply):
                return ending
            if advice := self._advice(completion, reply, observations):
                observations.append(advice)
            said = "\n".join(filter(None, observations))
            turns = f"(turn {self._turns} of at most {most}{self._money()})"
            note = f"{turns}{self._hint or self._reminder}"
            research = await self._research() if len(self._env.research) >= SHOWN_FROM else ""
            history.add(completion.text, said, note, research)
        return await self._forced(
            history, f"{counted(most, 'turns')} {'was' if most == 1 else 'were'} made", kept
        )

    async def _cell(self, code: str) -> str:
        """Run a cell, unless an earlier one of the same reply has given the answer."""
        if self._env.final is not None:
            return ""
        repeated = code.strip() in self._seen
        self._seen.add(code.strip())
        self._calls.account.check("seconds")
        left_ms = self._calls.account.left("seconds") * 1000
        turn = await self._env.execute(code, timeout_ms=min(self._cell_ms, left_ms))
        self._emit(turn, repeated=repeated)
        notes = map("({})".format, self._subcalls.notes())
        if repeated and turn.final is None:
            self._hint = "\n" + prompts.repeated(self._question, self._seen)
        return "\n".join([quoted("output", turn.observation), *notes])

    async def _research(self) -> str:
        """Return the tree of what was looked at, for the next message."""
        most = FEW_NODES if self.profile.is_short else MAX_NODES
        tree = await asyncio.to_thread(self._env.research.tree, most)
        return "" if tree is None else quoted("research", tree)

    async def _take_prose(self, reply: Reply) -> str:
        """Take FINAL(...) and FINAL_VAR(...) outside of code as if they had been in it.

        Return what is wrong with them, if they are not taken.
        """
        if await self._names_variable(reply):
            return await self._cell(f"FINAL_VAR({reply.variable!r})")
        if reply.answer is None:
            return ""
        return await self._env.take_answer(reply.answer) or ""

    async def _names_variable(self, reply: Reply) -> bool:
        """Return whether an answer is given by FINAL_VAR, or by FINAL with a variable's name."""
        if reply.variable is None or reply.answer is None:
            return reply.variable is not None
        return reply.variable in await self._env.variable_names()

    async def _ending(self, completion: Completion, reply: Reply) -> RunResult | None:
        """Return the ending, if there is an answer or the model has stopped writing code."""
        self._idle = 0 if reply.cells else self._idle + 1
        if self._env.final is None and self._idle >= MAX_IDLE:
            trouble, offered = await self._take_idle(completion, reply)
            if trouble and offered:
                return self._ended(Ended.REFUSED, offered, trouble)
            if trouble:
                return self._ended(Ended.UNANSWERED, "", trouble)
        final = self._env.final
        if final is None:
            return None
        return self._given(final, *(self._subcalls.unsure(final.text) or (Ended.ANSWERED, "")))

    def _given(self, final: Final, ended: Ended, reason: str) -> RunResult:
        """Return the ending of a run whose code has given an answer."""
        return RunResult(
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
        """Take a reply without code as the answer; return the reason if not taken, and its text."""
        if not completion.text.strip():
            return f"{MAX_IDLE} replies in a row had no code, the last one was empty", ""
        if completion.finish == "length":
            most = completion.usage.output_tokens
            return (
                f"{MAX_IDLE} replies in a row had no code, the last was cut at {most:,} tokens",
                "",
            )
        offered = reply.prose if reply.answer is None else reply.answer
        return await self._env.take_answer(offered, "text"), offered

    def _advice(self, completion: Completion, reply: Reply, observed: list[str]) -> str:
        """Return what to tell a model whose reply was empty, cut off, or without code."""
        tokens = completion.usage.output_tokens
        if completion.finish == "length" and completion.text.strip():
            return prompts.CUT.format(tokens=tokens)
        if not completion.text.strip():
            thought = completion.finish == "length" or tokens >= LEAST_THOUGHT
            return prompts.ONLY_THOUGHT.format(tokens=tokens) if thought else prompts.EMPTY
        if reply.cells or observed:
            return ""
        return prompts.NO_CODE_AGAIN if self._idle == MAX_IDLE - 1 else prompts.NO_CODE

    async def _forced(self, history: History, why: str, kept: Kept) -> RunResult:
        """Ask for an answer in prose, in the call that was kept back."""
        kept.free()
        calls = self._calls
        calls.writer.emit(
            Refused(parent=calls.parent, depth=calls.depth, what="another turn", why=why)
        )
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
        if is_cut:
            tokens = completion.usage.output_tokens
            why = f"{why}; and the last reply was cut off after {tokens:,} tokens"
        return self._ended(Ended.FORCED, text, why)

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
        is_short = self.profile.is_short
        if dear or is_short or size + most > account.left("tokens"):
            part = history.observed if is_short else history.brief
            least = prompt_tokens(part(prompts.LAST_SYSTEM, last, 0))
            room = account.left("tokens") - LEAST_LAST_TOKENS
            room = min(room, least + LAST_NOTES) if dear else room
            room = min(room / MARGIN, self._config.history_tokens)
            whole = part(prompts.LAST_SYSTEM, last, room)
        return await self._calls.ask(self._model, whole, most)

    def _ended(self, ended: Ended, text: str, reason: str) -> RunResult:
        return RunResult(
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
                network=tuple([request.facts() for request in use.requests]) if use else (),
                calls=tuple([call.to_dict() for call in turn.calls[:MAX_CALLS]]),
            )
        )
