"""An environment for rlms, the package `rlm`: the code of its recursive models runs in a sandbox.

    register()
    RLM(backend="openai", environment="atoll", ...)

It is rlms' own local environment, except that code runs in a sandbox: rlms' own functions answer
llm_query and rlm_query on the host, through its socket to the model.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from atoll.errors import VariableError
from atoll.guest.shared.values import Opaque
from atoll.integrations.common import LARGE, missing, open_box, upload_text
from atoll.policy import Capability
from atoll.types import stderr_with_error

try:
    import rlm.core.rlm
    import rlm.environments
    from rlm.core.types import REPLResult
    from rlm.environments.base_env import extract_tool_value
    from rlm.environments.local_repl import LocalREPL
except ImportError as exc:
    raise ImportError(missing("rlms", "rlms")) from exc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rlm.environments import BaseEnv

    from atoll.policy import Isolation
    from atoll.sandbox.blocking import SyncSandbox
    from atoll.types import SandboxResult

NEEDED = frozenset({Capability.STATE, Capability.BRIDGE, Capability.WORKSPACE})
QUERIES = ("llm_query", "llm_query_batched", "rlm_query", "rlm_query_batched")
_PRELUDE = """\
def _rlms_show_vars():
    own = {"answer", "SHOW_VARS"}
    found = {k: type(v).__name__ for k, v in globals().items() if k[0] != "_" and k not in own}
    if not found:
        return "No variables created yet. Use ```repl``` blocks to create variables."
    return f"Available variables: {found}"

class _RlmsAnswer(dict):
    told = None

    def __setitem__(self, key, value):
        dict.__setitem__(self, key, value)
        if key == "ready" and value:
            self.told = str(self.get("content", ""))

    def update(self, *args, **kwargs):
        for key, value in sorted(dict(*args, **kwargs).items()):
            self[key] = value

def _rlms_restore():
    names = globals()
    for name in %r:
        names.pop(name, None)
    names["SHOW_VARS"] = _rlms_show_vars
    for name in ("context", "history"):
        if name + "_0" in names:
            names[name] = names[name + "_0"]
    given = names.get("answer")
    if not isinstance(given, _RlmsAnswer):
        answer = names["answer"] = _RlmsAnswer(content="", ready=False)
        answer.update(given if isinstance(given, dict) else {})
    answer = names["answer"]
    told, answer.told = answer.told, None
    return told

del context
_rlms_restore()
"""


class AtollREPL(LocalREPL):  # type: ignore[misc]
    """The sandbox of one completion, or of many with `persistent=True`.

    `sandbox` has options of create_sandbox; everything else is as in rlms' LocalREPL.
    """

    _context_count: int
    _history_count: int

    def __init__(self, *, sandbox: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        self._options = dict(sandbox or {})
        payload = kwargs.get("context_payload")
        self._shared = payload if isinstance(payload, str) else None
        super().__init__(**kwargs)

    @property
    def isolation(self) -> Isolation:
        """How strongly the code is isolated from the host."""
        return self._box.isolation

    def setup(self) -> None:
        """Open the sandbox with rlms' names in it. A text as context is shared, not copied."""
        tools: dict[str, Callable[..., Any]] = {
            query: getattr(self, f"_{query}") for query in QUERIES
        }
        given = {name: extract_tool_value(value) for name, value in self.custom_tools.items()}
        tools |= {name: value for name, value in given.items() if callable(value)}
        self._constants = {name: value for name, value in given.items() if not callable(value)}
        self._pending_llm_calls: list[Any] = []
        self.globals: dict[str, Any] = {}
        options = {"context": self._shared, "tools": tools, **self._options}
        self._box: SyncSandbox = open_box(options, NEEDED)
        self.locals = GuestVariables(self._box)
        self._fill()

    def _fill(self) -> None:
        """Define rlms' names in a new guest."""
        shared = "" if self._shared is None else "context_0 = context\n"
        self._run(shared + _PRELUDE % (QUERIES,))
        for name, value in self._constants.items():
            self._set(name, value)

    def add_context(self, context_payload: Any, context_index: int | None = None) -> int:
        """Set context_N, and `context` for the first."""
        index = self._context_count if context_index is None else context_index
        if index != 0 or context_payload is not self._shared:
            self._set(f"context_{index}", context_payload)
        self._run("_rlms_restore()")
        self._context_count = max(self._context_count, index + 1)
        return index

    def add_history(
        self, message_history: list[dict[str, Any]], history_index: int | None = None
    ) -> int:
        """Set history_N, and `history` for the first."""
        index = self._history_count if history_index is None else history_index
        self._set(f"history_{index}", message_history)
        self._run("_rlms_restore()")
        self._history_count = max(self._history_count, index + 1)
        return index

    def append_compaction_entry(self, entry: list[dict[str, Any]] | dict[str, Any]) -> None:
        """Add a summary of rlms to the variable `history`."""
        if self.compaction:
            super().append_compaction_entry(entry)
            self._set("history", self._compaction_history)

    def execute_code(self, code: str) -> REPLResult:
        """Run code; then restore rlms' names that it has overwritten."""
        started = time.perf_counter()
        self._pending_llm_calls = []
        result = self._box.execute(code)
        answer = None if result.state_lost else self._box.execute("_rlms_restore()").value
        stderr = stderr_with_error(result.stderr, result.error, result.kind)
        stderr = stderr if result.stderr or not stderr else f"\n{stderr}"
        if result.state_lost:
            stderr += "\nThe variables of the session are lost."
            self._fill()
        return REPLResult(
            stdout=result.stdout,
            stderr=stderr,
            locals=self.locals.small(),
            execution_time=time.perf_counter() - started,
            rlm_calls=list(self._pending_llm_calls),
            final_answer=answer if isinstance(answer, str) else None,
        )

    def cleanup(self) -> None:
        """End the sandbox. Calling it again does nothing."""
        if hasattr(self, "_box") and not self.locals.closed:
            self.locals.close()
            self._box.destroy()
        super().cleanup()

    def __del__(self) -> None:
        # It may be collected in Atoll's own loop, which cannot wait for itself. When Python ends
        # no thread can start any more, and the sandbox ends with this process by itself.
        if hasattr(self, "_box") and not self.locals.closed and not sys.is_finalizing():
            threading.Thread(target=self.cleanup, daemon=True).start()

    def _set(self, name: str, value: Any) -> None:
        plain = isinstance(value, str | list | dict)
        text = value if isinstance(value, str) else json.dumps(value) if plain else ""
        if len(text) < LARGE:
            self._box.set_variable(name, value)
        else:
            reading = upload_text(self._box, name, text, is_json=not isinstance(value, str))
            self._run(f"{name} = {reading}")

    def _run(self, code: str) -> SandboxResult:
        done = self._box.execute(code)
        if not done.success:
            raise RuntimeError(f"the sandbox could not be set up: {done.error}")
        return done


def register(*, as_local: bool = False) -> None:
    """Register the environment "atoll" with rlms.

    rlms supports sub-calls (max_depth > 1), compaction and persistence only for environments whose
    names it knows: `as_local` makes "local", its default, this environment.
    """
    known = rlm.environments.get_environment
    names = {"atoll", "local"} if as_local else {"atoll"}

    def get_environment(environment: str, environment_kwargs: dict[str, Any]) -> BaseEnv:
        if environment in names:
            return AtollREPL(**environment_kwargs)
        return known(environment, environment_kwargs)

    rlm.environments.get_environment = rlm.core.rlm.get_environment = get_environment


class GuestVariables(MutableMapping[str, Any]):
    """The variables of a sandbox, read on access."""

    def __init__(self, box: SyncSandbox) -> None:
        self._box: SyncSandbox | None = box

    @property
    def closed(self) -> bool:
        """Whether the sandbox has ended."""
        return self._box is None

    def close(self) -> None:
        """Detach from the sandbox: the mapping is empty from now on."""
        self._box = None

    def small(self) -> dict[str, Any]:
        """Return all variables; a large one as a description."""
        values: dict[str, Any] = {}
        for variable in self._box.variables() if self._box else ():
            large = (variable.size or 0) > LARGE or max(variable.shape or (0,)) > LARGE
            note = f"<{variable.type}, shape {variable.shape}, not copied: it is large>"
            if variable.type not in ("function", "module", "type"):
                values[variable.name] = note if large else self._read(variable.name)
        return values

    def __getitem__(self, name: str) -> Any:
        if self._box is None or not self._box.has_variable(name):
            raise KeyError(name)
        return self._read(name)

    def __setitem__(self, name: str, value: Any) -> None:
        if self._box is not None:
            self._box.set_variable(name, value)

    def __delitem__(self, name: str) -> None:
        if self._box is None or not self._box.execute(f"del {name}").success:
            raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._box.variables().names if self._box else ())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def clear(self) -> None:
        """Detach from the sandbox: rlms clears the variables of an ended environment."""
        self.close()

    def _read(self, name: str) -> Any:
        assert self._box is not None
        try:
            value = self._box.get_variable(name, plain=True)
        except VariableError as exc:
            return f"<{name}: {exc}>"
        return value.repr if isinstance(value, Opaque) else value
