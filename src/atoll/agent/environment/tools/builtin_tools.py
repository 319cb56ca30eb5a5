"""The environment's own tools: made once for a session, and put into its registry."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from atoll.agent.environment.answers import Answers
from atoll.agent.environment.research.tools import ResearchTools
from atoll.agent.environment.toolbox import deterministic_tools
from atoll.agent.environment.tools.archives import Archives
from atoll.agent.environment.tools.context_tools import ContextTools, CutLists
from atoll.agent.environment.tools.documents import Documents
from atoll.agent.environment.tools.registry import Registry
from atoll.agent.environment.tools.search_tools import SearchTools
from atoll.agent.environment.tools.taint import Sources
from atoll.agent.environment.tools.web import Web
from atoll.agent.environment.tools.work_tools import BOTH, WorkTools, work_tools
from atoll.sandbox.tools import Tool, by_name
from atoll.search.coverage import Ledger
from atoll.search.spans_shown import Shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from atoll.agent.environment.options import EnvironmentConfig
    from atoll.search.index import ContextIndex

    Row = tuple[Callable[..., Any], str, str]
    """A function, how it is called, what it does."""


class BuiltinTools:
    """What the tools of one session share, and the registry that they are in."""

    def __init__(
        self,
        config: EnvironmentConfig,
        index: ContextIndex | None,
        spilled: Callable[[], Mapping[str, Path]],
        clean: Callable[[str], str] = str,
    ) -> None:
        self.sources = Sources(index)
        self.registry = Registry(self.sources, config.approver)
        self.ledger, self.shown = Ledger(0 if index is None else index.length), Shown(index)
        self.cut = CutLists()
        log, fields = self.registry.log, config.submit_fields
        self.answers = Answers(config, log, self.ledger, index, fields)
        with contextlib.ExitStack() as parts:
            documents = Documents(config.documents, spilled)
            parts.callback(documents.close)
            archives = Archives(documents, config.max_grep_results, self.cut)
            parts.callback(archives.close)
            search = SearchTools(config.documents, index, config.search_server, self.cut)
            parts.callback(search.close)
            context = ContextTools(
                index,
                documents,
                ledger=self.ledger,
                shown=self.shown,
                sources=self.sources,
                cut=self.cut,
                max_results=config.max_grep_results,
            )
            self._add(_context_tools(context))
            self._add(_code_tools(search), shown=config.documents is not None)
            searched = config.documents is not None or index is not None
            self._add(_document_tools(search), shown=searched)
            self._add(_archive_tools(archives), shown=config.documents is not None)
            self._add([_web_tool(Web(config.web))], shown=config.web is not None)
            self.research = ResearchTools(
                log,
                documents,
                semantic=config.semantic_references,
                clean=clean,
                memory=config.memory,
            )
            self._add(self.research.tools())
            self._add(self._answer_tools(fields))
            self._add(work_tools(WorkTools(config.guard)), shown=config.work_tools)
            parts.callback(self.registry.close)
            self._parts = parts.pop_all()
        self._add_general(config)

    def _add_general(self, config: EnvironmentConfig) -> None:
        """Add the caller's tools, and those of ours that give way to one of the same name."""
        given = by_name(config.tools)
        handlers = {"delegate": config.on_delegate, "escalate": config.on_escalate}
        for tool, works in routing_tools(handlers):
            if tool.name not in given:  # a tool of the caller's with that name is the handler
                self.registry.add([tool], hidden=not works)
        own = (one for one in deterministic_tools() if one.name not in given)
        self.registry.add(own, hidden=not config.toolbox)
        self.registry.add(given.values())

    def close(self) -> None:
        """Release documents, archives and indexes."""
        self._parts.close()

    def _add(self, tools: Iterator[Tool] | list[Tool], *, shown: bool = True) -> None:
        self.registry.add(tools, hidden=not shown)

    def _answer_tools(self, fields: Mapping[str, type] | None) -> Iterator[Tool]:
        usage = "FINAL(answer, quotes=[...])"
        what = "give your answer and end; quotes are passages of the context, word for word"
        if fields is not None:
            usage = "SUBMIT({})".format(", ".join(f"{name}=..." for name in fields))
            what = "give your answer, all fields at once, and end"
        yield Tool(
            name="FINAL",
            function=self.answers.take,
            usage=usage,
            description=what,
            allowed_callers=BOTH,
        )
        yield Tool(
            name="SHOW_TOOLS",
            function=self.registry.listing,
            usage="SHOW_TOOLS()",
            description="this list; help(function) says more",
            read_only=True,
        )


def _exploring(calls: Iterable[Row], **facts: Any) -> Iterator[Tool]:
    """Yield tools that look at something and change nothing."""
    for function, usage, what in calls:
        shared: dict[str, Any] = {"read_only": True, "allowed_callers": BOTH, "explores": True}
        yield Tool(
            name=function.__name__,
            function=function,
            usage=usage,
            description=what,
            **{**shared, **facts},
        )


def _context_tools(context: ContextTools) -> Iterator[Tool]:
    return _exploring(
        (
            (
                context.peek,
                "peek(n, start=0), peek(path, n)",
                "characters of the context, or of a document; a start below 0 is from the end",
            ),
            (
                context.grep,
                "grep(pattern), grep(path, pattern)",
                (
                    "lines that match a regular expression: dicts of line, start, end, text; "
                    "the list's .total counts all of them"
                ),
            ),
            (context.list_dir, "list_dir(path='.')", "names of documents and of files"),
        )
    )


def _code_tools(search: SearchTools) -> Iterator[Tool]:
    return _exploring(
        (
            (
                search.code_search,
                "code_search(query, k=10)",
                "functions and classes that fit a question best",
            ),
            (
                search.colgrep,
                "colgrep(query, pattern=None, k=10)",
                "functions and classes by meaning, of those that match a regular expression",
            ),
        ),
        source="document",
    )


def _document_tools(search: SearchTools) -> Iterator[Tool]:
    what = "sections that fit a question best; of the context with start and end"
    return _exploring(((search.doc_search, "doc_search(query, k=10)", what),), source="document")


def _archive_tools(archives: Archives) -> Iterator[Tool]:
    """Yield the tools; opening an archive closes the one before, so it is not read-only."""
    opening = (archives.archive_open, "archive_open(path)", "members of a zip, tar, pdf")
    yield from _exploring((opening,), source="archive", read_only=False)
    yield from _exploring(
        (
            (archives.archive_file, "archive_file(name)", "the text of a member"),
            (archives.archive_search, "archive_search(text)", "lines of members"),
        ),
        source="archive",
    )


def _web_tool(web: Web) -> Tool:
    what = "the text of a page, from allowed hosts"
    row = (web.web_fetch, "web_fetch(url)", what)
    return next(_exploring((row,), source="web", cost="network", allowed_callers=("code",)))


def query_tools(llm: Any, rlm: Any) -> Iterator[Tool]:
    """Yield llm_query and rlm_query, of those handlers that there are."""
    if llm is not None:
        yield Tool(
            name="llm_query",
            function=llm,
            usage="llm_query(prompt), batch_llm_query([prompt, ...])",
            description="ask a language model about text that is in the prompt; a batch runs at "
            "once, answers in order; samples=n gives a list of n answers to one prompt",
            cost="model",
            source="model",
            read_only=True,
        )
    if rlm is not None:
        yield Tool(
            name="rlm_query",
            function=rlm,
            usage="rlm_query(task, ctx), batch_rlm_query([{'task': ..., 'ctx': ...}, ...])",
            description="give a sub-task on a long text to another one like you",
            cost="model",
            source="model",
            allowed_callers=BOTH,
        )


def routing_tools(handlers: Mapping[str, Any]) -> Iterator[tuple[Tool, bool]]:
    """Yield delegate and escalate, each with whether there is a handler that makes it work."""
    described = {
        "delegate": "hand a task to another agent; in a turn of its own",
        "escalate": "hand the task up, to a stronger agent; in a turn of its own",
    }
    for name, what in described.items():
        handler = handlers.get(name)
        function = _unrouted(name) if handler is None else handler
        yield (
            Tool(name=name, function=function, description=what, cost="model", source="model"),
            handler is not None,
        )


def _unrouted(name: str) -> Callable[..., Any]:
    def refuse(task: str, to: str | None = None) -> str:  # noqa: ARG001 - as it is called
        raise PermissionError(
            f"{name} is off here: there is no other agent. Go on by yourself, or say in the answer "
            f"what is left. (The host can give on_{name}=function)"
        )

    return refuse


def worker_tool(worker: Any) -> Iterator[Tool]:
    """Yield llm_call, which is refused in words if there is no model to delegate to."""
    yield Tool(
        name="llm_call",
        function=_no_worker if worker is None else worker,
        usage="llm_call(prompt)",
        description="delegate a small task to the worker model",
        parameters=({"name": "prompt", "kind": 1, "annotation": "str"},),
        cost="model",
        source="model",
        read_only=True,
    )


def _no_worker(prompt: str) -> str:  # noqa: ARG001 - as it is called
    raise PermissionError(
        "llm_call is off here: there is no worker model. Do it in code. (The host of this "
        "environment can give worker=function)"
    )
