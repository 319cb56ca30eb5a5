"""The environment's own tools: a table, of which each session's registry is filled."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from atoll.agent.environment.answers import Answers
from atoll.agent.environment.research.tools import ResearchTools
from atoll.agent.environment.toolbox import deterministic_tools
from atoll.agent.environment.tools.context_tools import ContextTools, CutLists
from atoll.agent.environment.tools.documents import Archives, Documents, SearchTools
from atoll.agent.environment.tools.registry import Registry
from atoll.agent.environment.tools.taint import Sources
from atoll.agent.environment.tools.web import Web
from atoll.agent.environment.tools.work_tools import WorkTools
from atoll.sandbox.tools import Tool, by_name
from atoll.search.coverage import CoverageLog
from atoll.search.spans_shown import Shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from atoll.agent.environment.options import EnvironmentConfig
    from atoll.search.index import ContextIndex

BOTH = ("code", "chain")
_WORKS = {"allowed_callers": BOTH}
_LOOKS = {"allowed_callers": BOTH, "read_only": True, "explores": True}
_DOCUMENT = {**_LOOKS, "source": "document"}
_ARCHIVE = {**_LOOKS, "source": "archive"}
_MODEL: dict[str, Any] = {"cost": "model", "source": "model"}


@dataclass(frozen=True, slots=True)
class Row:
    """A function of a part of the environment as a tool: how it is called, what it does."""

    name: str
    usage: str
    what: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the Tool."""
    shown: str = ""
    """What there must be for it to be in the list for a model; it can be called in any case."""
    method: str = ""
    """The function's name in its part, if it is not the tool's."""


TABLE: dict[str, tuple[Row, ...]] = {
    "context": (
        Row(
            "peek",
            "peek(n, start=0), peek(path, n)",
            "characters of the context, or of a document; a start below 0 is from the end",
            _LOOKS,
        ),
        Row(
            "grep",
            "grep(pattern), grep(path, pattern)",
            "lines that match a regular expression: dicts of line, start, end, text; "
            "the list's .total counts all of them",
            _LOOKS,
        ),
        Row("list_dir", "list_dir(path='.')", "names of documents and of files", _LOOKS),
    ),
    "search": (
        Row(
            "code_search",
            "code_search(query, k=10)",
            "functions and classes that fit a question best",
            _DOCUMENT,
            "documents",
        ),
        Row(
            "colgrep",
            "colgrep(query, pattern=None, k=10)",
            "functions and classes by meaning, of those that match a regular expression",
            _DOCUMENT,
            "documents",
        ),
        Row(
            "doc_search",
            "doc_search(query, k=10)",
            "sections that fit a question best; of the context with start and end",
            _DOCUMENT,
            "texts",
        ),
    ),
    "archives": (
        # opening an archive closes the one before, so it is not read-only
        Row(
            "archive_open",
            "archive_open(path)",
            "members of a zip, tar, pdf",
            {**_ARCHIVE, "read_only": False},
            "documents",
        ),
        Row("archive_file", "archive_file(name)", "the text of a member", _ARCHIVE, "documents"),
        Row("archive_search", "archive_search(text)", "lines of members", _ARCHIVE, "documents"),
    ),
    "web": (
        Row(
            "web_fetch",
            "web_fetch(url)",
            "the text of a page, from allowed hosts",
            {"read_only": True, "explores": True, "source": "web", "cost": "network"},
            "web",
        ),
    ),
    "research": (
        # not read-only: it sees the calls before it
        Row(
            "recall",
            "recall(query)",
            "what you, or earlier runs, found on a question; recall() is the tree",
            _WORKS,
        ),
        Row(
            "note",
            "note(text)",
            "keep a remark for recall; name calls by their ids, such as G1",
            _WORKS,
        ),
    ),
    "answers": (
        Row(
            "FINAL",
            "FINAL(answer, quotes=[...])",
            "give your answer and end; quotes are passages of the context, word for word",
            _WORKS,
            method="take",
        ),
    ),
    "registry": (
        Row(
            "SHOW_TOOLS",
            "SHOW_TOOLS()",
            "this list; help(function) says more",
            {"read_only": True},
            method="listing",
        ),
    ),
    "work": (
        # they change the sandbox's files, so they are not read-only
        Row(
            "run_shell",
            "run_shell(command, timeout=60)",
            "a shell command in the sandbox",
            _WORKS,
            "work",
        ),
        Row(
            "run_python_code",
            "run_python_code(code)",
            "code in a namespace of its own",
            _WORKS,
            "work",
        ),
        Row(
            "file_write_safe",
            "file_write_safe(path, content)",
            "a file, whole or not at all",
            _WORKS,
            "work",
        ),
        Row(
            "log_append",
            "log_append(message, log='log')",
            "a line for logs/NAME.jsonl",
            _WORKS,
            "work",
        ),
        Row(
            "benchmark_run",
            "benchmark_run(code, repeat=5, shell=False)",
            "how long code takes",
            _WORKS,
            "work",
        ),
    ),
}
"""The rows of each part, in the order of the list for a model."""


@functools.cache
def _described(name: str, kind: type[object]) -> tuple[tuple[Row, Tool], ...]:
    """Return the tools of a part as they are described to every session, bound to no part."""
    return tuple(
        (
            row,
            Tool(
                name=row.name,
                function=getattr(kind, row.method or row.name).__get__(kind),
                usage=row.usage,
                description=row.what,
                **row.facts,
            ),
        )
        for row in TABLE[name]
    )


def tools_of(name: str, part: object) -> Iterator[tuple[Row, Tool]]:
    """Yield the rows of a part of a session, each with its tool."""
    for row, tool in _described(name, type(part)):  # type: ignore[arg-type]  # a class has a hash
        yield row, tool.with_function(getattr(part, row.method or row.name))


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
        self.ledger, self.shown = CoverageLog(0 if index is None else index.length), Shown(index)
        self.cut = CutLists()
        self.answers = Answers(config, self.registry.log, self.ledger, index)
        with contextlib.ExitStack() as parts:
            documents = Documents(config.documents, spilled)
            parts.callback(documents.close)
            archives = Archives(documents, config.max_grep_results, self.cut)
            parts.callback(archives.close)
            search = SearchTools(config.documents, index, config.search_server, self.cut)
            parts.callback(search.close)
            context = ContextTools(
                index=index,
                documents=documents,
                ledger=self.ledger,
                shown=self.shown,
                sources=self.sources,
                cut=self.cut,
                max_results=config.max_grep_results,
            )
            self.research = ResearchTools(self.registry.log, documents, config, clean)
            self._add_rows(
                config,
                index,
                context=context,
                search=search,
                archives=archives,
                web=Web(config.web),
                research=self.research,
                answers=self.answers,
                registry=self.registry,
                work=WorkTools(config.guard),
            )
            parts.callback(self.registry.threads.close)
            self._parts = parts.pop_all()
        self._add_general(config)

    def close(self) -> None:
        """Release documents, archives and indexes; end the threads, without waiting for a tool."""
        self._parts.close()

    def _add_rows(
        self, config: EnvironmentConfig, index: ContextIndex | None, **parts: object
    ) -> None:
        """Add the tools of the table, in its order."""
        there = {
            "": True,
            "documents": config.documents is not None,
            "texts": config.documents is not None or index is not None,
            "web": config.web is not None,
            "work": config.work_tools,
        }
        for name in TABLE:
            for row, tool in tools_of(name, parts[name]):
                if row.name == "FINAL" and config.submit_fields is not None:
                    fields = ", ".join(f"{field}=..." for field in config.submit_fields)
                    what = "give your answer, all fields at once, and end"
                    tool = replace(tool, usage=f"SUBMIT({fields})", description=what)  # noqa: PLW2901
                self.registry.add([tool], hidden=not there[row.shown])

    def _add_general(self, config: EnvironmentConfig) -> None:
        """Add the caller's tools, and those of ours that give way to one of the same name."""
        given = by_name(config.tools) if config.tools else {}
        for name, what in ROUTING.items():
            if name not in given:  # a tool of the caller's with that name is the handler
                handler = getattr(config, f"on_{name}")
                routing = refusing(name, what) if handler is None else _routing(name, what, handler)
                self.registry.add([routing], hidden=handler is None)
        own = [tool for tool in deterministic_tools() if tool.name not in given]
        self.registry.add(own, hidden=not config.toolbox)
        self.registry.add(given.values())


ROUTING = {
    "delegate": "hand a task to another agent; in a turn of its own",
    "escalate": "hand the task up, to a stronger agent; in a turn of its own",
}
"""Tools that hand a task to another agent, which the caller may provide."""


def _routing(name: str, what: str, function: Callable[..., Any]) -> Tool:
    return Tool(name=name, function=function, description=what, **_MODEL)


@functools.cache
def refusing(name: str, what: str) -> Tool:
    """Return a tool that says that there is no other agent."""

    def refuse(task: str, to: str | None = None) -> str:  # noqa: ARG001 - as it is called
        raise PermissionError(
            f"{name} is off here: there is no other agent. Go on by yourself, or say in the answer "
            f"what is left. (The host can give on_{name}=function)"
        )

    return _routing(name, what, refuse)


def _no_worker(prompt: str) -> str:  # noqa: ARG001 - as it is called
    raise PermissionError(
        "llm_call is off here: there is no worker model. Do it in code. (The host of this "
        "environment can give worker=function)"
    )


LLM_QUERY = Tool(
    name="llm_query",
    function=_no_worker,
    usage="llm_query(prompt), batch_llm_query([prompt, ...])",
    description="ask a language model about text that is in the prompt; a batch runs at "
    "once, answers in order; samples=n gives a list of n answers to one prompt",
    read_only=True,
    **_MODEL,
)
RLM_QUERY = Tool(
    name="rlm_query",
    function=_no_worker,
    usage="rlm_query(task, ctx), batch_rlm_query([{'task': ..., 'ctx': ...}, ...])",
    description="give a sub-task on a long text to another one like you",
    allowed_callers=BOTH,
    **_MODEL,
)
LLM_CALL = Tool(
    name="llm_call",
    function=_no_worker,
    usage="llm_call(prompt)",
    description="delegate a small task to the worker model",
    read_only=True,
    **_MODEL,
)
"""Tools that ask a model: each session has those that it has a handler for, and llm_call."""
