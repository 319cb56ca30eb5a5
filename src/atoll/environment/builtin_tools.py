"""The environment's own tools: made once for a session, and put into its registry."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from atoll.environment.answers import Answers
from atoll.environment.archives import Archives
from atoll.environment.context_tools import ContextTools
from atoll.environment.documents import Documents
from atoll.environment.registry import Registry
from atoll.environment.search_tools import SearchTools
from atoll.environment.web import Web
from atoll.explore.ledger import Ledger
from atoll.explore.spans_shown import Shown
from atoll.tools import Tool, by_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from atoll.environment.options import EnvironmentConfig
    from atoll.explore.index import ContextIndex

BOTH = ("code", "chain")


class BuiltinTools:
    """What the tools of one session share, and the registry that they are in."""

    def __init__(
        self,
        config: EnvironmentConfig,
        index: ContextIndex | None,
        spilled: Callable[[], Mapping[str, Path]],
    ) -> None:
        self.registry = Registry()
        self.ledger, self.shown = Ledger(0 if index is None else index.length), Shown(index)
        log, fields = self.registry.log, config.submit_fields
        self.answers = Answers(config, log, self.ledger, index, fields)
        with contextlib.ExitStack() as parts:
            documents = Documents(config.documents, spilled)
            parts.callback(documents.close)
            archives = Archives(documents, config.max_grep_results)
            parts.callback(archives.close)
            search = SearchTools(config.documents, index, config.search_server)
            parts.callback(search.close)
            most = config.max_grep_results
            context = ContextTools(index, documents, self.ledger, self.shown, most)
            self._add(_context_tools(context))
            self._add(_search_tools(search), shown=config.documents is not None)
            self._add(_archive_tools(archives), shown=config.documents is not None)
            self._add([_web_tool(Web(config.web))], shown=config.web is not None)
            self._add(self._answer_tools(fields))
            self._parts = parts.pop_all()
        self.registry.add(by_name(config.tools).values())

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
        yield Tool(name="FINAL", function=self.answers.take, usage=usage, description=what)
        yield Tool(
            name="SHOW_TOOLS",
            function=self.registry.listing,
            usage="SHOW_TOOLS()",
            description="this list; help(function) says more",
            read_only=True,
        )


def _context_tools(context: ContextTools) -> Iterator[Tool]:
    facts: dict[str, Any] = {"read_only": True, "allowed_callers": BOTH, "explores": True}
    yield Tool(
        name="peek",
        function=context.peek,
        usage="peek(n, start=0), peek(path, n)",
        description="characters of the context, or of a document; a start below 0 is from the end",
        **facts,
    )
    yield Tool(
        name="grep",
        function=context.grep,
        usage="grep(pattern), grep(path, pattern)",
        description="lines that match a regular expression: dicts of line, start, end, text; "
        "the list's .total counts all of them",
        **facts,
    )
    yield Tool(
        name="list_dir",
        function=context.list_dir,
        usage="list_dir(path='.')",
        description="names of documents and of files",
        **facts,
    )


def _search_tools(search: SearchTools) -> Iterator[Tool]:
    facts: dict[str, Any] = {"read_only": True, "allowed_callers": BOTH, "explores": True}
    yield Tool(
        name="code_search",
        function=search.code_search,
        usage="code_search(query, k=10)",
        description="functions and classes that fit a question best",
        **facts,
    )
    yield Tool(
        name="doc_search",
        function=search.doc_search,
        usage="doc_search(query, k=10)",
        description="sections that fit a question best; of the context with start and end",
        **facts,
    )


def _archive_tools(archives: Archives) -> Iterator[Tool]:
    calls = (
        ("archive_open", archives.archive_open, "archive_open(path)", "members of a zip, tar, pdf"),
        ("archive_file", archives.archive_file, "archive_file(name)", "the text of a member"),
        ("archive_search", archives.archive_search, "archive_search(text)", "lines of members"),
    )
    for name, function, usage, what in calls:
        yield Tool(
            name=name,
            function=function,
            usage=usage,
            description=what,
            read_only=True,
            allowed_callers=BOTH,
            explores=True,
        )


def _web_tool(web: Web) -> Tool:
    return Tool(
        name="web_fetch",
        function=web.web_fetch,
        usage="web_fetch(url)",
        description="the text of a page, from allowed hosts",
        read_only=True,
        cost="network",
        explores=True,
    )


def query_tools(llm: Any, rlm: Any) -> Iterator[Tool]:
    """Yield llm_query and rlm_query, of those handlers that there are."""
    if llm is not None:
        yield Tool(
            name="llm_query",
            function=llm,
            usage="llm_query(prompt), batch_llm_query([prompt, ...])",
            description="ask a language model about text that is in the prompt; a batch runs at "
            "once, answers in order",
            cost="model",
        )
    if rlm is not None:
        yield Tool(
            name="rlm_query",
            function=rlm,
            usage="rlm_query(task, ctx), batch_rlm_query([{'task': ..., 'ctx': ...}, ...])",
            description="give a sub-task on a long text to another one like you",
            cost="model",
        )
