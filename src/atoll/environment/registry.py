"""Every tool that an environment offers its guest, by name, and what they share."""

from __future__ import annotations

import contextlib
import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any

from atoll.environment.answers import Answers
from atoll.environment.archives import Archives
from atoll.environment.context_tools import ContextTools
from atoll.environment.documents import Documents
from atoll.environment.invocations import InvocationLog
from atoll.environment.search_tools import SearchTools
from atoll.environment.web import Web
from atoll.errors import ConfigError
from atoll.explore.ledger import Ledger
from atoll.explore.spans_shown import Shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from atoll.config import Handler, REPLConfig
    from atoll.environment.options import EnvironmentConfig
    from atoll.explore.index import ContextIndex


class Registry:
    """The tools of one session."""

    def __init__(
        self,
        config: REPLConfig,
        environment: EnvironmentConfig,
        index: ContextIndex | None,
        spilled: Callable[[], Mapping[str, Path]],
    ) -> None:
        self.log, self.ledger = InvocationLog(), Ledger(0 if index is None else index.length)
        self.shown = Shown(index)
        self.answers = Answers(config, self.log, self.ledger, index, environment.submit_fields)
        with contextlib.ExitStack() as parts:
            documents = Documents(environment.documents, spilled)
            parts.callback(documents.close)
            archives = Archives(documents, config.max_grep_results)
            parts.callback(archives.close)
            search = SearchTools(environment.documents, index, environment.search_server)
            parts.callback(search.close)
            context = ContextTools(
                index, documents, self.ledger, self.shown, config.max_grep_results
            )
            self._own: dict[str, Handler] = {
                "peek": context.peek,
                "grep": context.grep,
                "list_dir": context.list_dir,
                "code_search": search.code_search,
                "doc_search": search.doc_search,
                "archive_open": archives.archive_open,
                "archive_file": archives.archive_file,
                "archive_search": archives.archive_search,
                "web_fetch": Web(environment.web).web_fetch,
                "FINAL": self.answers.take,
            }
            self._parts = parts.pop_all()

    def tools(self, others: Mapping[str, Handler]) -> dict[str, Handler]:
        """The own ones, counted, and the caller's."""
        if taken := sorted(set(others) & set(self._own)):
            raise ConfigError(f"a tool cannot be called {taken[0]!r}: the environment has that")
        return {**{name: self._counted(name, one) for name, one in self._own.items()}, **others}

    def close(self) -> None:
        """Let go of documents, archives, indexes."""
        self._parts.close()

    def _counted(self, name: str, tool: Handler) -> Handler:
        if inspect.iscoroutinefunction(tool):

            @wraps(tool)
            async def asked(*args: Any, **kwargs: Any) -> Any:
                self.log.count(name)
                answer = await tool(*args, **kwargs)
                self.log.answered(name, answer)
                return answer

            return asked

        @wraps(tool)
        def called(*args: Any, **kwargs: Any) -> Any:
            self.log.count(name)
            answer = tool(*args, **kwargs)
            self.log.answered(name, answer)
            return answer

        return called
