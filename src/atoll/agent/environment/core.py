"""REPLEnvironment, async: puts sandbox, tools, answers and observations together.

SECURITY: the tools are trusted and their callers are not. Guest code reaches them by the bridge
alone, as plain values; it has no reference to any of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import re
import time
import uuid
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from atoll.agent.environment.chains.turn import Cells, note_of
from atoll.agent.environment.exploration import Episodes, context_tokens, explored
from atoll.agent.environment.options import configured, index_of
from atoll.agent.environment.research import tools as research_state
from atoll.agent.environment.tools.builtin_tools import (
    LLM_CALL,
    LLM_QUERY,
    RLM_QUERY,
    BuiltinTools,
)
from atoll.agent.environment.tools.registry import CALLING
from atoll.agent.environment.turns import Turn, is_cut, render
from atoll.agent.memory.learner import Advice
from atoll.agent.strategies.cache import ValueCache
from atoll.agent.strategies.operators import Operators, operator_tools
from atoll.config import SandboxConfig
from atoll.errors import ConfigError, SandboxClosedError, SandboxError
from atoll.factory import open_sandbox
from atoll.guest.shared.values import Opaque
from atoll.text.name_hints import EnvironmentHints
from atoll.text.redact import Redactor, secrets_of
from atoll.text.sanitize import sanitize_code_unicode
from atoll.text.spill import Spill

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from atoll.agent.environment.chains.turn import ChainReport
    from atoll.agent.environment.exploration import Exploration
    from atoll.agent.environment.options import EnvironmentOptions, Worker
    from atoll.agent.environment.turns import Final
    from atoll.config import Handler
    from atoll.sandbox.base import BaseSandbox
    from atoll.sandbox.tools import Tool
    from atoll.search.coverage import Coverage
    from atoll.types import SandboxResult


ANSWER_SECONDS = 10.0
"""How long reading the dict `answer` may take: it may be anything, and code of the guest's runs."""
DEFAULT_OUTPUT_LENGTH = SandboxConfig(backend="auto").max_output_length
MATCH_SECONDS = 3.0
"""CPU time in which a turn looks for what a model was shown of the context; then it notes less."""
MAX_PROMPTS = 2_000
"""Prompts of one turn that are looked through; of more, the latest."""
SPILLED = 8 << 20
"""Characters of a cell's output that are kept, unless max_output_length is set."""
NO_NAME = re.compile(r"NameError: name '(\w{1,60})' is not defined")
CUT_NOTICE = re.compile(r"\[\.\.\. output cut: ([\d,]+) of [\d,]+ bytes left out \.\.\.\]")
MAX_PROMPT = 1_000_000
"""Characters of a sub-call's prompt: more fits no model, and looking through it takes seconds."""


class REPLEnvironment(EnvironmentHints):
    """A context, a sandbox beside it, and the tools that a model looks into it with."""

    def __init__(
        self, config: SandboxConfig | None = None, **options: Unpack[EnvironmentOptions]
    ) -> None:
        """`config` is an EnvironmentConfig; `options` are its fields, and override it."""
        self._config = configured(config, options)
        saved = None
        if self._config.state is not None:
            state, saved = research_state.split_state(self._config.state)
            self._config = self._config.with_values(state=state)
        self.session_id = self._config.session_id or uuid.uuid4().hex
        self.index = index_of(self._config.context)
        """The index over the context's text, if there is a context."""
        redact = Redactor(secrets_of(os.environ)).redact
        self._clean: Callable[[str], str] = redact if self._config.redact else str
        self._spill = Spill(
            self._config.spill_dir,
            self.session_id,
            cap=self._config.output_cap,
            preview=self._config.max_output_preview,
            summarise=None if self._config.worker is None else _awaited(self._config.worker),
        )
        self._make_tools()
        self._box: BaseSandbox | None = None
        self._turn, self._turns = asyncio.Lock(), 0
        self._prompts: deque[str] = deque(maxlen=MAX_PROMPTS)
        self._telling, self._closed = asyncio.Lock(), False
        if saved is not None:
            self._turns = research_state.load(saved, self.research, self.ledger, self.index)

    def _make_tools(self) -> None:
        """Make what the turns of a session fill: tools, log, ledger, research, answers."""
        config = self._config
        self._tools = tools = BuiltinTools(config, self.index, self._spill.files, self._clean)
        self._cells = Cells(tools.registry, config)
        self.ledger = tools.ledger
        """The ranges of the context that were searched, and those that a model was shown."""
        self.invocations = tools.registry.log
        """The log of tool calls; its counts() are by name."""
        self.research = tools.research.context
        """What was looked at, as a graph of calls and notes, up to the last turn."""
        llm, rlm = config.on_llm_query, config.on_rlm_query
        worker = llm if config.worker is None else _awaited(config.worker)
        for tool, handler in ((LLM_QUERY, llm), (RLM_QUERY, rlm), (LLM_CALL, worker)):
            if handler is not None:
                tool = tool.with_function(self._redacted(handler))  # noqa: PLW2901
            if handler is not None or tool is LLM_CALL:  # which is refused in words
                hidden = tool.name == "llm_call" and (llm is not None or worker is None)
                tools.registry.add([tool], hidden=hidden)
        self._add_operators()
        self._episodes: Episodes | None = None
        if config.memory is not None and config.record_exploration:
            tokens = partial(context_tokens, self.index)
            self._episodes = Episodes(config.memory, self.invocations, self._clean, tokens)

    def _add_operators(self) -> None:
        """Add map_query and its like, which ask what llm_query asks."""
        if self._config.on_llm_query is None:
            return
        ask = _awaited(self._redacted(self._config.on_llm_query))
        cache = ValueCache(self._config.query_cache)
        self.operators = Operators(ask, cache, note=self._tools.cut.say_once)
        listed, others = operator_tools(self.operators)
        self._tools.registry.add([listed])
        self._tools.registry.add(others, hidden=True)

    @property
    def box(self) -> BaseSandbox:
        """The sandbox; SandboxClosedError before start() and after close()."""
        if self._box is None:
            raise SandboxClosedError("the environment is not open: start() it, or use `with`")
        return self._box

    @property
    def submit_fields(self) -> Mapping[str, type] | None:
        """The fields that an answer must have, if it must."""
        return self._config.submit_fields

    @property
    def final(self) -> Final | None:
        """The answer, once one was given."""
        return self._tools.answers.final

    @property
    def coverage(self) -> Coverage:
        """Which of the context was scanned so far, and which was shown to a model."""
        return self.ledger.coverage()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """All functions that guest code may call on the host: the environment's, the caller's."""
        return tuple(self._tools.registry)

    def tool_list(self, without: Collection[str] = ()) -> str:
        """Return the functions for a prompt, one a line, but for some by name."""
        return self._tools.registry.listing(without)

    async def start(self) -> Self:
        """Open the sandbox, with the tools in it."""
        if self._closed:
            raise SandboxClosedError("the environment has been closed: make another")
        if self._box is None:
            if self._episodes is not None:
                await asyncio.to_thread(self._episodes.begin, self._config.task)
            length = 0 if self.index is None else self.index.length
            handlers, kept = self._tools.registry.handlers(), self._config.max_output_length
            if kept == DEFAULT_OUTPUT_LENGTH:
                kept = SPILLED  # a long output goes to a file, so more is kept than the default
            self._box = await open_sandbox(
                self._config.with_values(
                    explored_length=length,
                    max_output_length=kept,
                    on_llm_query=handlers.pop("llm_query", None),
                    on_rlm_query=handlers.pop("rlm_query", None),
                    tools=handlers,
                )
            )
        return self

    async def execute(
        self, code: str, *, timeout_ms: float | None = None, structured: bool | None = None
    ) -> Turn:
        """Run a cell of a model's; what it is to be told is in the Turn.

        `structured` says whether several tool calls are a chain; unset: as the environment is made.
        """
        if (calling := CALLING.get()) is not None:
            raise ConfigError(f"the tool {calling} cannot run a cell: it is called by one")
        async with self._turn:
            self._turns += 1
            number, before, chain = self._turns, self.final, None
            plain = code if code.isascii() else await asyncio.to_thread(sanitize_code_unicode, code)
            if self._config.structured if structured is None else structured:
                result, chain = await self._cells.run(self.box, plain, timeout_ms, number)
            else:
                result = await self._cells.execute(self.box, plain, timeout_ms, number, None)
            note = await self._note_of(result, plain, chain)
            final = None if self.final is before else self.final
            whole = await self._whole_value(result) if is_cut(result) else None
            text = await asyncio.to_thread(self._observe, result, note, final, whole)
            spilled = None
            if len(text) > self._config.output_cap:
                observed = await self._spill.observe(number, text, lost=_lost(result))
                text, spilled = observed.text, observed.path
                await asyncio.to_thread(self._note, text, final)
            return Turn(
                number=number,
                observation=text,
                result=result,
                code=plain,
                final=final,
                spilled=spilled,
                calls=self.invocations.of(f"turn {number}"),
                chain=chain,
            )

    async def next_question(self, task: str | None = None) -> None:
        """Forget the answer, for another question: variables, calls and what was seen stay.

        What counts as exploration begins anew.
        """
        await self._record()
        self._tools.answers.forget()
        self.invocations.begin_question()
        if self._episodes is not None:
            await asyncio.to_thread(self._episodes.begin, task)

    @property
    def exploration(self) -> Exploration:
        """How the question was explored so far: strategy, calls, token efficiency."""
        return explored(self.invocations, self.final)

    @property
    def advice(self) -> Advice:
        """What the memory says of tasks like this one; `advice.prompt()` is text for a model."""
        return Advice() if self._episodes is None else self._episodes.advice

    async def reward(self, quality: float) -> bool:
        """Tell the memory how good the answer was, from 0 to 1; return whether it was stored."""
        if self._episodes is None:
            raise ConfigError("this environment has no memory: give it memory=FILE")
        return await asyncio.to_thread(self._episodes.reward, quality)

    async def reset(self) -> None:
        """Begin again: a new sandbox, no variables, no answer, nothing seen or spilled, no log."""
        async with self._turn:
            await self._record()
            box, self._box = self._box, None
            if box is not None:
                await box.destroy()
            await asyncio.to_thread(self._tools.close)
            self._config = self._config.with_values(state=None)
            self._make_tools()
            self._turns = 0
            self._prompts.clear()
            await asyncio.to_thread(self._spill.clear)
            await self.start()

    async def get_state(self) -> dict[str, object]:
        """Return turns, variables, calls, what was seen, the answer, and spilled files.

        From 3 nodes on, `research` is the tree of what was looked at.
        """
        variables = await self.box.variables()
        tree = await asyncio.to_thread(self.research.tree)
        return {
            "session_id": self.session_id,
            "turns": self._turns,
            "variables": {variable.name: variable.type for variable in variables},
            "calls": self.invocations.counts(),
            "coverage": self.coverage.to_dict(),
            "final": None if self.final is None else self.final.text,
            "spilled": sorted(self._spill.files()),
            **({} if tree is None else {"research": tree}),
        }

    async def variable_names(self) -> list[str]:
        """Return the names of the guest's variables, the newest last; [] if the guest is gone.

        A key of globals() that is not an identifier is left out: it could be a text for the model.
        """
        with contextlib.suppress(SandboxError):
            return [
                variable.name
                for variable in await self.box.variables()
                if variable.name.isidentifier()
            ]
        return []

    async def save(self) -> bytes:
        """Return variables, files, research and coverage as signed bytes, for the option `state`.

        StateError if the sandbox cannot be saved.
        """
        async with self._turn:
            state, parts = await self.box.save(), (self.research, self.ledger, self.index)
            return await asyncio.to_thread(research_state.seal, state, *parts, self._turns)

    async def take_answer(self, text: str, how: str = "answer") -> str | None:
        """Take an answer given in prose; return the reason if it is not taken."""
        return await self._tools.answers.offer(how, text)

    async def close(self) -> None:
        """End the sandbox and let go of everything. Calling it twice is harmless."""
        box, self._box = self._box, None
        if not self._closed:
            self._closed = True
            await self._record()
        try:
            if box is not None:
                await box.destroy()
            await asyncio.to_thread(self._tools.close)  # a tool may still be at it
        finally:
            self._spill.close()

    async def __aenter__(self) -> Self:
        try:
            return await self.start()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def _record(self) -> None:
        if self._episodes is not None:
            await asyncio.to_thread(self._episodes.record, self.final)

    async def _note_of(
        self, result: SandboxResult, code: str, chain: ChainReport | None
    ) -> str | None:
        """Return notes for the model beside the output: on its answer, its chain, or a name."""
        if result.success:
            return await self._take_answer_variable() if "answer" in code else None
        if chain is not None and (stopped := note_of(chain)):
            return stopped
        missing = NO_NAME.search(result.error or "")
        meant = self._tools.registry.nearest(missing[1]) if missing else None
        return None if meant is None else f"(did you mean {meant}?)"

    async def _take_answer_variable(self) -> str | None:
        """Take the dict `answer` if it is ready; return the reason if it is not taken."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await self.box.get_variable("answer", plain=True)
        except TimeoutError:
            return "the variable `answer` took too long to read: make it a plain dict"
        except SandboxError:  # it is too large or cyclic: not an answer
            return None
        return await self._tools.answers.take_variable(answer)

    async def _whole_value(self, result: SandboxResult) -> Any:
        """Return the last value, of which the result has the beginning; None if unreadable."""
        if result.state_lost:
            return None
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                value = await self.box.get_variable("_", plain=True)
        except (TimeoutError, SandboxError):
            return None
        return None if isinstance(value, Opaque) else value

    def _observe(
        self, result: SandboxResult, note: str | None, final: Final | None, whole: Any
    ) -> str:
        """Return the whole text for the model, before it is cut; uncut, it counts as shown.

        It is one job for a thread: most cells print little, and need no summary.
        """
        toon = self._config.use_toon_encoding
        shown = render(result, toon=toon, answered=final is not None, note=note, whole=whole)
        text = self._clean("\n".join([shown, *self._tools.cut.since(shown)]))
        if len(text) <= self._config.output_cap:
            self._note(text, final)
        return text

    def _note(self, observation: str, final: Final | None) -> None:
        """Note what models were shown, what was looked at, and how an answer was found."""
        until = time.thread_time() + MATCH_SECONDS
        texts = [observation]
        while self._prompts:
            texts.append(self._prompts.popleft())
        for text in texts:
            for start, end in self._tools.shown.match(text, until=until):
                self.ledger.show(start, end)
        self._tools.research.update(final)
        if final is not None and self._episodes is not None:
            self._episodes.record(final)

    def _redacted(self, handler: Handler) -> Handler:
        """Return a handler whose prompts lose their secrets, and count as shown to a model."""
        if inspect.iscoroutinefunction(handler):

            async def ask(prompt: str, *rest: Any) -> Any:
                async with self._telling:  # of thousands, one at a time has a thread
                    answer = await asyncio.to_thread(self._told, prompt)
                return await handler(answer, *rest)

            return ask
        return lambda prompt, *rest: handler(self._told(prompt), *rest)

    def _told(self, prompt: str) -> str:
        """Return the text for a sub-call's model, in a thread: the ledger is searched for it."""
        if isinstance(prompt, str) and len(prompt) > MAX_PROMPT:
            raise ValueError(
                f"the prompt has {len(prompt):,} characters, of at most {MAX_PROMPT:,}: cut it"
            )
        clean = self._clean(prompt)
        self._prompts.append(clean)
        return clean


def _lost(result: SandboxResult) -> int:
    """Return the bytes of output that the sandbox did not keep."""
    if not result.truncated:
        return 0
    found = CUT_NOTICE.findall(result.stdout) + CUT_NOTICE.findall(result.stderr)
    return max(1, sum(int(number.replace(",", "")) for number in found))


def _awaited(worker: Worker) -> Callable[[str], Awaitable[str]]:
    """Return the worker as a coroutine function: one that blocks runs in a thread."""

    async def summarise(prompt: str) -> str:
        answer = await asyncio.to_thread(worker, prompt)
        return answer if isinstance(answer, str) else await answer

    return summarise
