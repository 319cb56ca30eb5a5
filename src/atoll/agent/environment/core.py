"""REPLEnvironment, async: puts sandbox, tools, answers and observations together.

SECURITY: the tools are trusted and their callers are not. Guest code reaches them by the bridge
alone, as plain values; it has no reference to any of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import os
import re
import time
import uuid
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from atoll.agent.environment.chains.turn import Cells, note_of
from atoll.agent.environment.episodes import Episodes
from atoll.agent.environment.exploration import context_tokens
from atoll.agent.environment.observe import is_cut, render
from atoll.agent.environment.options import configured, index_of
from atoll.agent.environment.research import state as research_state
from atoll.agent.environment.tools.builtin_tools import BuiltinTools, query_tools, worker_tool
from atoll.agent.environment.tools.registry import CALLING
from atoll.agent.environment.types import Turn
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

    from atoll.agent.environment.exploration import Exploration
    from atoll.agent.environment.options import EnvironmentOptions, Worker
    from atoll.agent.environment.research.tree_state import ResearchContext
    from atoll.agent.environment.tools.invocations import InvocationLog
    from atoll.agent.environment.types import Final
    from atoll.agent.memory.planner import Advice
    from atoll.config import Handler
    from atoll.sandbox.base import BaseSandbox
    from atoll.sandbox.tools import Tool
    from atoll.search.coverage import Coverage, Ledger
    from atoll.search.index import ContextIndex
    from atoll.types import SandboxResult


ANSWER_SECONDS = 10.0
"""How long reading the dict `answer` may take: it may be anything, and code of the guest's runs."""
DEFAULT_OUTPUT_LENGTH = SandboxConfig(backend="auto").max_output_length
MATCH_SECONDS = 3.0
"""CPU time in which a turn looks for what a model was shown of the context; then it notes less."""
MOST_PROMPTS = 2_000
"""Prompts of one turn that are looked through; of more, the latest."""
SPILLED = 8 << 20
"""Characters of a cell's output that are kept, unless max_output_length is set."""
NO_NAME = re.compile(r"NameError: name '(\w{1,60})' is not defined")
CUT_NOTICE = re.compile(r"\[\.\.\. output cut: ([\d,]+) of [\d,]+ bytes left out \.\.\.\]")
MOST_PROMPT = 1_000_000
"""Characters of a sub-call's prompt: more fits no model, and looking through it takes seconds."""


class REPLEnvironment(EnvironmentHints):
    """A context, a sandbox beside it, and the tools that a model looks into it with."""

    def __init__(
        self, config: SandboxConfig | None = None, **options: Unpack[EnvironmentOptions]
    ) -> None:
        """`config` is an EnvironmentConfig; `options` are its fields, and override it."""
        self._config = configured(config, options)
        state, saved = research_state.split_state(self._config.state)
        self._config = dataclasses.replace(self._config, state=state)
        self.session_id = self._config.session_id or uuid.uuid4().hex
        self._index = index_of(self._config.context)
        self._redactor = Redactor(secrets_of(os.environ))
        self._spill = Spill(
            self._config.spill_dir,
            self.session_id,
            cap=self._config.output_cap,
            preview=self._config.max_output_preview,
            summarise=_awaited(self._config.worker),
        )
        self._tools = self._make_tools()
        self._episodes = self._make_episodes()
        self._box: BaseSandbox | None = None
        self._turn, self._turns = asyncio.Lock(), 0
        self._prompts: deque[str] = deque(maxlen=MOST_PROMPTS)
        self._telling, self._closed = asyncio.Lock(), False
        if saved is not None:
            self._turns = research_state.load(saved, self.research, self.ledger, self._index)

    @property
    def box(self) -> BaseSandbox:
        """The sandbox; SandboxClosedError before start() and after close()."""
        if self._box is None:
            raise SandboxClosedError("the environment is not open: start() it, or use `with`")
        return self._box

    @property
    def index(self) -> ContextIndex | None:
        """The index over the context's text, if there is a context."""
        return self._index

    @property
    def submit_fields(self) -> Mapping[str, type] | None:
        """The fields that an answer must have, if it must."""
        return self._config.submit_fields

    @property
    def final(self) -> Final | None:
        """The answer, once one was given."""
        return self._tools.answers.final

    @property
    def ledger(self) -> Ledger:
        """The ranges of the context that were searched, and those that a model was shown."""
        return self._tools.ledger

    @property
    def coverage(self) -> Coverage:
        """Which of the context was scanned so far, and which was shown to a model."""
        return self._tools.ledger.coverage()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """All functions that guest code may call on the host: the environment's, the caller's."""
        return tuple(self._tools.registry)

    @property
    def invocations(self) -> InvocationLog:
        """The log of tool calls; its counts() are by name."""
        return self._tools.registry.log

    @property
    def research(self) -> ResearchContext:
        """What was looked at, as a graph of calls and notes, up to the last turn."""
        return self._tools.research.context

    def tool_list(self, without: Collection[str] = ()) -> str:
        """Return the functions for a prompt, one a line, but for some by name."""
        return self._tools.registry.listing(without)

    async def start(self) -> Self:
        """Open the sandbox, with the tools in it."""
        if self._closed:
            raise SandboxClosedError("the environment has been closed: make another")
        if self._box is None:
            await self._begin(self._config.task)
            length = 0 if self._index is None else self._index.length
            handlers = self._tools.registry.handlers()
            self._box = await open_sandbox(
                dataclasses.replace(
                    self._config,
                    explored_length=length,
                    max_output_length=self._output_length(),
                    on_llm_query=handlers.pop("llm_query", None),
                    on_rlm_query=handlers.pop("rlm_query", None),
                    tools=handlers,
                )
            )
        return self

    def _output_length(self) -> int:
        """Return how much output is kept: a long one goes to a file, so more than the default."""
        given = self._config.max_output_length
        return SPILLED if given == DEFAULT_OUTPUT_LENGTH else given

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
            self._tools.registry.log.parent = f"turn {self._turns}"
            before = self.final
            plain = code if code.isascii() else await asyncio.to_thread(sanitize_code_unicode, code)
            result, chain = await self._cells().run(
                self.box,
                plain,
                timeout_ms,
                structured=self._config.structured if structured is None else structured,
            )
            trouble = await self._read_answer(result, plain) or note_of(chain)
            trouble = trouble or self._meant(result)
            final = None if self.final is before else self.final
            whole = await self._whole_value(result)
            text, is_whole = await asyncio.to_thread(self._finish, result, trouble, final, whole)
            observed = await self._spill.observe(self._turns, text, lost=_lost(result))
            if not is_whole:
                await asyncio.to_thread(self._note, observed.text, final)
            return Turn(
                number=self._turns,
                observation=observed.text,
                result=result,
                code=plain,
                final=final,
                spilled=observed.path,
                calls=self.invocations.of(self.invocations.parent),
                chain=chain,
            )

    async def next_question(self, task: str | None = None) -> None:
        """Forget the answer, for another question: variables, calls and what was seen stay.

        What counts as exploration begins anew.
        """
        await self._record()
        self._tools.answers.forget()
        self.invocations.begin_question()
        await self._begin(task)

    @property
    def exploration(self) -> Exploration:
        """How the question was explored so far: strategy, calls, token efficiency."""
        return self._episodes.exploration(self.final)

    @property
    def advice(self) -> Advice:
        """What the memory says of tasks like this one; `advice.prompt()` is text for a model."""
        return self._episodes.advice

    async def reward(self, quality: float) -> bool:
        """Tell the memory how good the answer was, from 0 to 1; return whether it was stored."""
        return await asyncio.to_thread(self._episodes.reward, quality)

    def _cells(self) -> Cells:
        return Cells(
            self._tools.registry,
            parallel=self._config.parallel_tools,
            mode=self._config.tool_chain_mode or "seq",
            mutations=bool(self._config.parallel_mutations),
            guard=self._config.guard,
        )

    async def reset(self) -> None:
        """Begin again: a new sandbox, no variables, no answer, nothing seen or spilled, no log."""
        async with self._turn:
            await self._record()
            box, self._box = self._box, None
            if box is not None:
                await box.destroy()
            await asyncio.to_thread(self._tools.close)
            self._config = dataclasses.replace(self._config, state=None)
            self._tools, self._turns = self._make_tools(), 0
            self._prompts.clear()
            await asyncio.to_thread(self._spill.clear)
            self._episodes = self._make_episodes()
            await self.start()

    async def get_state(self) -> dict[str, Any]:
        """Return turns, variables, calls, what was seen, the answer, and spilled files.

        From 3 nodes on, `research` is the tree of what was looked at.
        """
        variables = await self.box.variables()
        tree = await asyncio.to_thread(self.research.tree)
        return {
            "session_id": self.session_id,
            "turns": self._turns,
            "variables": {one.name: one.type for one in variables},
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
            return [one.name for one in await self.box.variables() if one.name.isidentifier()]
        return []

    async def save(self) -> bytes:
        """Return variables, files, research and coverage as signed bytes, for the option `state`.

        StateError if the sandbox cannot be saved.
        """
        async with self._turn:
            state, parts = await self.box.save(), (self.research, self.ledger, self._index)
            return await asyncio.to_thread(research_state.seal, state, *parts, self._turns)

    async def take_answer(self, text: str, how: str = "answer") -> str | None:
        """Take an answer given in prose; return what is wrong with it, if it is not taken."""
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

    def _make_tools(self) -> BuiltinTools:
        spilled = self._spill.files
        tools = BuiltinTools(self._config, self._index, spilled, self._clean)
        llm, rlm = self._config.on_llm_query, self._config.on_rlm_query
        tools.registry.add(query_tools(self._overheard(llm), self._overheard(rlm)))
        worker = _awaited(self._config.worker) or llm
        hidden = llm is not None or worker is None
        tools.registry.add(worker_tool(self._overheard(worker)), hidden=hidden)
        return tools

    def _make_episodes(self) -> Episodes:
        memory = self._config.memory if self._config.record_exploration else None
        return Episodes(memory, self.invocations, self._clean, partial(context_tokens, self._index))

    async def _begin(self, task: str | None) -> None:
        if self._episodes.learns:
            await asyncio.to_thread(self._episodes.begin, task)

    async def _record(self) -> None:
        if self._episodes.learns:
            await asyncio.to_thread(self._episodes.record, self.final)

    async def _read_answer(self, result: SandboxResult, code: str) -> str | None:
        """Look whether the dict `answer` is ready, if the code speaks of it."""
        if not result.success or "answer" not in code:
            return None
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await self.box.get_variable("answer", plain=True)
        except TimeoutError:
            return "the variable `answer` took too long to read: make it a plain dict"
        except SandboxError:  # it is too large or cyclic: not an answer
            return None
        return await self._tools.answers.take_variable(answer)

    def _meant(self, result: SandboxResult) -> str | None:
        """Return which function was meant, if the cell named one that does not exist."""
        missing = NO_NAME.search(result.error or "")
        meant = self._tools.registry.nearest(missing[1]) if missing else None
        return None if meant is None else f"(did you mean {meant}?)"

    async def _whole_value(self, result: SandboxResult) -> Any:
        """Return the last value if the result has only its beginning; None if it cannot be read."""
        if not is_cut(result) or result.state_lost:
            return None
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                value = await self.box.get_variable("_", plain=True)
        except (TimeoutError, SandboxError):
            return None
        return None if isinstance(value, Opaque) else value

    def _finish(
        self, result: SandboxResult, trouble: str | None, final: Final | None, whole: Any
    ) -> tuple[str, bool]:
        """Return the text for the model, and whether it is complete: then it counts as shown.

        It is one job for a thread: most cells print little, and need no summary.
        """
        text = self._render(result, trouble, final, whole)
        is_whole = len(text) <= self._config.output_cap
        if is_whole:
            self._note(text, final)
        return text, is_whole

    def _note(self, observation: str, final: Final | None) -> None:
        """Note what a model was shown, what was looked at, and how an answer was found."""
        self._show_all(observation)
        self._tools.research.update(final)
        if final is not None:
            self._episodes.record(final)

    def _render(
        self, result: SandboxResult, trouble: str | None, final: Final | None, whole: Any
    ) -> str:
        """Return all that a model is told, not yet cut."""
        text = render(
            result,
            toon=self._config.use_toon_encoding,
            answered=final is not None,
            note=trouble,
            whole=whole,
        )
        return self._clean("\n".join([text, *self._tools.cut.since(text)]))

    def _overheard(self, handler: Handler | None) -> Handler | None:
        """A handler whose prompts lose their secrets, and count as shown to a model."""
        if handler is None:
            return None
        if inspect.iscoroutinefunction(handler):

            async def ask(prompt: str, *rest: Any) -> Any:
                async with self._telling:  # of thousands, one at a time has a thread
                    told = await asyncio.to_thread(self._told, prompt)
                return await handler(told, *rest)

            return ask
        return lambda prompt, *rest: handler(self._told(prompt), *rest)

    def _told(self, prompt: str) -> str:
        """What a sub-call's model is told: in a thread, as the ledger is searched for it."""
        if isinstance(prompt, str) and len(prompt) > MOST_PROMPT:
            raise ValueError(
                f"the prompt has {len(prompt):,} characters, of at most {MOST_PROMPT:,}: cut it"
            )
        clean = self._clean(prompt)
        self._prompts.append(clean)
        return clean

    def _clean(self, text: str) -> str:
        return self._redactor.redact(text) if self._config.redact else text

    def _show_all(self, observation: str) -> None:
        """Note what the model, and the models of sub-calls, were shown of the context."""
        until = time.thread_time() + MATCH_SECONDS
        texts = [observation]
        while self._prompts:
            texts.append(self._prompts.popleft())
        for text in texts:
            for start, end in self._tools.shown.match(text, until=until):
                self._tools.ledger.show(start, end)


def _lost(result: SandboxResult) -> int:
    """Return the bytes of output that the sandbox did not keep."""
    if not result.truncated:
        return 0
    found = CUT_NOTICE.findall(result.stdout) + CUT_NOTICE.findall(result.stderr)
    return max(1, sum(int(number.replace(",", "")) for number in found))


def _awaited(worker: Worker | None) -> Callable[[str], Awaitable[str]] | None:
    """A worker that blocks, in a thread; one that does not, as it is."""
    if worker is None:
        return None

    async def summarise(prompt: str) -> str:
        answer = await asyncio.to_thread(worker, prompt)
        return answer if isinstance(answer, str) else await answer

    return summarise
