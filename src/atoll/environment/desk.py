"""Every tool that an environment offers its guest, by name, and what they share."""

from __future__ import annotations

import contextlib
import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any

from atoll.environment.answers import Answers
from atoll.environment.archives import Archives
from atoll.environment.documents import Documents
from atoll.environment.library import Library
from atoll.environment.looking import Looking
from atoll.environment.tally import Tally
from atoll.environment.web import Web
from atoll.errors import ConfigError
from atoll.explore.ledger import Ledger
from atoll.explore.shown import Shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from atoll.config import Handler, REPLConfig
    from atoll.environment.setting import Setting
    from atoll.explore.index import ContextIndex


class Desk:
    """The tools of one session."""

    def __init__(
        self,
        config: REPLConfig,
        setting: Setting,
        index: ContextIndex | None,
        spilled: Callable[[], Mapping[str, Path]],
    ) -> None:
        self.tally, self.ledger = Tally(), Ledger(0 if index is None else index.length)
        self.shown = Shown(index)
        self.answers = Answers(config, self.tally, self.ledger, index, setting.submit_fields)
        with contextlib.ExitStack() as parts:
            documents = Documents(setting.documents, spilled)
            parts.callback(documents.close)
            archives = Archives(documents, config.max_grep_results)
            parts.callback(archives.close)
            library = Library(setting.documents, index, setting.search_server)
            parts.callback(library.close)
            looking = Looking(index, documents, self.ledger, self.shown, config.max_grep_results)
            self._own: dict[str, Handler] = {
                "peek": looking.peek,
                "grep": looking.grep,
                "list_dir": looking.list_dir,
                "code_search": library.code_search,
                "doc_search": library.doc_search,
                "archive_open": archives.archive_open,
                "archive_file": archives.archive_file,
                "archive_search": archives.archive_search,
                "web_fetch": Web(setting.web).web_fetch,
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
                self.tally.count(name)
                answer = await tool(*args, **kwargs)
                self.tally.answered(name, answer)
                return answer

            return asked

        @wraps(tool)
        def called(*args: Any, **kwargs: Any) -> Any:
            self.tally.count(name)
            answer = tool(*args, **kwargs)
            self.tally.answered(name, answer)
            return answer

        return called
