"""Answers the host's requests, one at a time: cells, variables, saved states."""

from __future__ import annotations

import builtins
import os
import sys

from ..agent import helpers
from ..agent.bridge import Bridge, FailedQuery
from ..cells import delta, repl
from ..cells.printing import PrintCollector
from ..core import memory, no_network, private, stdin
from ..core.failures import HostCallError
from ..shared import rpc, values
from ..state import leftovers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from ..core.hidden import HiddenPackage
    from ..core.ports import Calls, Gate, PassedData, Stream, Streams
    from ..shared.messages import (
        AgentParams,
        CodeParams,
        ContextSource,
        Fault,
        Initialized,
        InitializeParams,
        Json,
        Names,
        Outcome,
        StateParams,
        T,
        ToolsParams,
        Variable,
        VariableParams,
        WorkspaceParams,
    )
    from ..state.keeper import Keeper

    Handler = Callable[[Any], Any]


ALSO_SHOWN = ("/mnt/data", "/tmp", "/home/guest")  # noqa: S108 - the guest's own


class Server:
    """Answers the host's requests, one at a time."""

    own_files = True
    """Whether guest code may open files itself; if not, the runtime opens none for it either."""

    folders_have_ctime = False
    """Whether the kernel notes when a folder changed; WebAssembly's systems have no such time."""

    def __init__(
        self,
        calls: Calls,
        gate: Gate,
        streams: Streams,
        passed: PassedData,
        folder: str,
        *,
        runtime: HiddenPackage,
    ) -> None:
        self._gate, self._streams, self._passed = gate, streams, passed
        self._folder, self._runtime = folder, runtime
        self._start_folder = folder
        self._repl = repl.Repl(runtime)
        self._bridge = Bridge(calls, self._context)
        self._known_keeper: Keeper | None = None
        self._memory = memory.MemoryFence(None)
        self._inherited = 0
        self._files: delta.Snapshot = {}
        self._empty_since: int | None = None
        """When the folder was last changed, if it is empty: see `delta.empty_since`."""
        self._clones: list[int] = []
        """Processes that are live clones of this one."""
        self._private = False
        self._given: Any = None
        self._environment: dict[str, str] = {}
        self._settings: Json = {}
        self._elsewhere: set[str] = set()
        self._stdin: Any = None
        self._paths: list[str] = []
        self._setup, self._paths_shown = True, False
        self._helpers: Names = {}
        """Functions beside the host's tools; a tool of the same name takes precedence."""
        self._tools: set[str] = set()
        self._call_host: Callable[..., Any] = self._bridge.call_host
        self._modules: Any = None
        self._methods: dict[str, Handler] = {
            "initialize": self._initialize,
            "execute": self._execute,
            "get_variable": self._get_variable,
            "has_variable": self._has_variable,
            "variables": self._variables,
            "set_variable": self._set_variable,
            "tools": self._set_tools,
            "validate": self._validate,
            "save": self._save,
            "restore": self._restore,
            "workspace": self._workspace,
        }

    def rehearse(self) -> None:
        """Run an empty cell, so that the first real one finds everything loaded."""
        outcome = self._gate.run(lambda: repl.Repl().run("None"), late_interrupt)
        outcome["files"] = delta.compare(self._files, delta.scan(self._folder))
        self._streams.renew()
        rpc.decode(rpc.request("rehearsal", "execute", outcome)[:-1])

    def preload(self, modules: Names) -> None:
        """Let guest code find modules among its globals."""
        self._repl.preloaded.bind(modules)

    def prepare(self) -> None:
        """Renew streams and memory limit for the next cell; the host reads the answer meanwhile."""
        private.renew_interpreter()
        self._streams.renew()
        self._memory.renew()
        if self._stdin is not None:
            if self._stdin.closed:
                self._stdin = stdin.open_text(self._bridge.read_stdin)
            sys.stdin = self._stdin

    def answer(self, message: rpc.Message) -> bytes:
        """Return the encoded answer to one request."""
        ident, method = message["id"], message["method"]
        handler = self._methods.get(method)
        if handler is None:
            return rpc.error(ident, rpc.METHOD_NOT_FOUND, "no method {}".format(method))
        try:
            return rpc.result(ident, handler(message.get("params", {})))
        except rpc.MessageTooLargeError as exc:
            return rpc.error(ident, rpc.TOO_LARGE, str(exc))
        except (ValueError, RecursionError) as exc:
            return rpc.error(ident, rpc.INVALID_PARAMS, str(exc)[:1000])

    def _initialize(self, params: InitializeParams) -> Initialized:
        os.environ.update(params.get("env", {}))
        if "workdir" in params:
            self._enter(params["workdir"])
        if "argv" in params:
            sys.argv[:] = params["argv"]
            self._repl.name_script(*sys.argv[:1])
        if params.get("stdin"):
            self._stdin = stdin.open_text(self._bridge.read_stdin)
        self._paths = params.get("paths", [])
        self._setup = bool(params.get("setup", True))
        self._show_paths(self._setup)
        self._offer_names([] if "agent" in params else params.get("tools", []))
        no_network.install(params.get("network"))
        self._repl.serve_inspect()
        self._repl.serve_ipython()
        self._limit_memory(params.get("memory_bytes"))
        self._private = bool(params.get("private_folder"))  # nobody else puts files there
        shared = False
        if "context" in params:
            value, shared = self._load_context(params["context"])
            self._repl.namespace["context"] = value
            self._bridge.set_shared(value)
        else:
            self._repl.namespace["context"] = None
        if params.get("lazy"):
            with self._runtime:
                self._bridge.be_lazy()
        if "agent" in params:
            self._equip(params["agent"], params.get("tools", []))
        self._given = self._repl.namespace["context"]
        self._environment = dict(os.environ)
        self._note_files()
        self._settings = leftovers.settings()
        return {"context_shared": shared}

    def _enter(self, folder: str) -> None:
        """Start cells and commands in another folder than that whose files are shown."""
        try:
            os.makedirs(folder, exist_ok=True)
            os.chdir(folder)
        except OSError as exc:
            raise ValueError(
                f"workdir={folder!r} is not a folder of the image: {exc.strerror}"
            ) from None
        self._start_folder = folder
        sys.path.append(folder)

    def _note_files(self) -> None:
        """Remember the files that are there before the guest's own, outside of its folder."""
        self._elsewhere = set(leftovers.files_elsewhere(self._folder)) if self.own_files else set()

    def _limit_memory(self, limit: int | None) -> None:
        self._memory = memory.MemoryFence(limit, self._inherited)

    def _equip(self, agent: AgentParams, described: list[Any]) -> None:
        """Offer the functions that a model explores its context and answers with."""
        with self._runtime:
            from ..agent.chain import WAVE, NamedCalls, Waves
            from ..agent.explorer import ContextLength, Explorer
            from ..agent.tool_modules import ToolModules
            from ..agent.tools import make
            from ..agent.work_tools import WorkTools
        namespace, waves = self._repl.namespace, Waves()
        self._call_host = call_host = waves.numbered(self._bridge.call_host)
        self._modules = ToolModules(call_host)
        described = self._modules.offer(described)
        functions: Names = dict(make(tool, call_host) for tool in described)
        functions.update(self._modules.functions())
        explorer = Explorer(call_host, namespace, self._repl.preloaded.own, self.own_files)
        for owner in (explorer, WorkTools(call_host, self.own_files), self._bridge):
            functions.update((name, getattr(owner, name)) for name in owner.NAMES)
        named = NamedCalls(call_host, dict(functions))
        offered = dict(functions, **{WAVE: waves})
        offered.update((name, getattr(named, name)) for name in named.NAMES)
        offered["context_len"] = ContextLength(agent["context_len"])
        self._offer(offered)
        self._tools = {tool["name"] for tool in described}.union(self._modules.functions())
        self._helpers.update((name, offered[name]) for name in set(offered) - self._tools)
        namespace["answer"] = {"content": "", "ready": False}

    def _load_context(self, source: ContextSource) -> tuple[Any, bool]:
        if "value" in source:
            return values.decode(source["value"]), False
        text, shared = self._passed.text(source["width"], source["length"], source["ascii"])
        if not source["json"]:
            return text, shared
        import json

        return values.decode(json.loads(text)), False

    def _offer_names(self, described: list[Any]) -> None:
        """Offer functions as built-ins: imported modules see them, the namespace stays clean."""
        offered: Names = {}
        owners = self._bridge, helpers.ContextHelpers(self._context), PrintCollector()
        for owner in owners:
            offered.update((name, getattr(owner, name)) for name in owner.NAMES)
        for helper in (
            helpers.chunk_text,
            helpers.chunk_by_size,
            helpers.chunk_by_headers,
            helpers.extract_json,
            FailedQuery,
            HostCallError,
        ):
            offered[helper.__name__] = helper
        offered.update(
            input=stdin.read_line, display=self._repl.display, __magic__=self._repl.magic
        )
        self._offer(offered)
        self._helpers = offered
        if described:
            self._set_tools({"tools": described})

    def _set_tools(self, params: ToolsParams) -> Variable:
        """Offer these tools and no others; a helper that a tool stood before is there again."""
        with self._runtime:
            from ..agent.tool_modules import ToolModules
            from ..agent.tools import make
        self._modules = self._modules or ToolModules(self._call_host)
        described = self._modules.offer(params["tools"])
        tools = dict(make(tool, self._call_host) for tool in described)
        tools.update(self._modules.functions())
        for name in self._tools.difference(tools, self._helpers):
            self._offered.pop(name, None)
            vars(builtins).pop(name, None)
        self._offer({name: self._helpers[name] for name in self._tools & set(self._helpers)})
        self._offer(tools)
        self._tools = set(tools)
        return {"set": True}

    def _offer(self, names: Names) -> None:
        self._repl.preloaded.make_way(names)
        for name, value in names.items():
            setattr(builtins, name, value)
        self._offered.update(names)

    @property
    def _offered(self) -> Names:
        return self._repl.offered

    def _context(self) -> Any:
        return self._repl.namespace.get("context")

    def _execute(self, params: CodeParams) -> Outcome:
        self._show_paths(bool(params.get("setup", self._setup)))
        known = self._private and "look_again" not in params
        before = self._files if known else delta.scan(self._folder)
        outcome: Outcome = self._gate.run(lambda: self._run(params), late_interrupt)
        self._cell_ended(outcome["exit_code"])
        self._streams.flush()
        self._scan_folder(known)
        outcome["files"] = delta.compare(before, self._files)
        return outcome

    def _run(self, params: CodeParams) -> Outcome:
        """Run a cell."""
        return self._repl.run(params["code"])

    def _scan_folder(self, known: bool) -> None:
        """Look for files; a folder of its own that was empty and did not change is empty still."""
        since = self._empty_since
        if known and since is not None and since == delta.changed(self._folder):
            return  # empty, as `_files` is
        self._files = delta.scan(self._folder)
        if self.folders_have_ctime:
            self._empty_since = None if self._files else delta.empty_since(self._folder)

    def _show_paths(self, wanted: bool) -> None:
        """Have the folders of packages at the end of sys.path, or take them out of it."""
        if wanted != self._paths_shown:
            self._paths_shown = wanted
            own = [path for path in sys.path if path not in self._paths]
            sys.path[:] = own + self._paths if wanted else own

    def _cell_ended(self, exit_code: int = 0) -> None:
        """Called after guest code has run; a process ends here if it is a child that forked."""

    def _get_variable(self, params: VariableParams) -> Variable:
        """Read a variable; `plain` wants lists for arrays, and never refuses an object."""
        name, plain = params["name"], bool(params.get("plain"))

        def read() -> Variable:
            if name not in self._repl.namespace:
                return {"found": False}
            value = self._repl.namespace[name]
            return {"found": True, "value": values.encode(value, strict=not plain, typed=not plain)}

        return self._interruptible(read)

    def _has_variable(self, params: VariableParams) -> Variable:
        def look() -> Variable:
            return {"found": params["name"] in self._repl.namespace}

        return self._interruptible(look)

    def _variables(self, params: VariableParams) -> Json:
        with self._runtime:
            from ..core.variables import describe
        own, hidden = self._repl.preloaded.own, bool(params.get("hidden"))
        return self._interruptible(lambda: describe(own(), hidden))

    def _set_variable(self, params: VariableParams) -> Variable:
        def assign() -> Variable:
            self._repl.namespace[params["name"]] = values.decode(params["value"])
            return {"set": True}

        return self._interruptible(assign)

    def _interruptible(self, work: Callable[[], T]) -> T:
        """Run work that may call guest code, which a timeout interrupts."""
        try:
            answer: T = self._gate.run(work, lambda: {"interrupted": True})
        except Exception as exc:
            raise ValueError("{}: {}".format(type(exc).__name__, values.short_text(exc))) from None
        return answer

    def _save(self, params: StateParams) -> Json:
        return self._with_stream(
            lambda stream: self._keeper().save(
                stream,
                params["max_bytes"],
                params["cloudpickle"],
                self._private,
                bool(params.get("whole")),
            )
        )

    def _restore(self, params: StateParams) -> Json:
        answer = self._with_stream(
            lambda stream: self._keeper().restore(
                stream, params["max_bytes"], params["cloudpickle"], bool(params.get("replace"))
            )
        )
        self._files = delta.scan(self._folder)
        return answer

    def _keeper(self) -> Keeper:
        if self._known_keeper is None:
            with self._runtime:
                from ..state.keeper import Keeper
            self._known_keeper = Keeper(
                self._repl.module, self._folder, self._offered, self._repl.preloaded
            )
        self._known_keeper.given = self._given
        self._known_keeper.environment = self._environment
        self._known_keeper.elsewhere = self._elsewhere
        self._known_keeper.clones = self._clones
        self._known_keeper.settings = self._settings
        self._known_keeper.tasks = self._repl.waiting_tasks
        return self._known_keeper

    def _with_stream(self, work: Callable[[Stream], Json]) -> Json:
        """Run `work` with the stream that the host opened; whatever it raises is an answer."""
        stream: Stream | None = None
        try:
            stream = opened = self._passed.stream()
            answer: Json = self._gate.run(lambda: work(opened), lambda: {"interrupted": True})
        except BaseException as exc:
            answer = {"error": "{}: {}".format(type(exc).__name__, values.short_text(exc))}
        self._cell_ended()
        if stream is not None:
            stream.close()
        return answer

    def _workspace(self, params: WorkspaceParams) -> Json:
        """Run a file operation, for a host that cannot reach the files otherwise."""
        with self._runtime:
            from ..shared.local_files import LocalFiles
            from ..shared.workspace import Workspace
        space = Workspace(LocalFiles(self._folder, *ALSO_SHOWN), most=params["most"])
        wanted = values.decode(params["params"])
        answer: Json = self._gate.run(
            lambda: {"answer": values.encode(space.run(params["operation"], wanted))},
            lambda: {"interrupted": True},
        )
        self._files = delta.scan(self._folder)
        return answer

    def _validate(self, params: CodeParams) -> Fault:
        return self._repl.validate(params["code"])


def late_interrupt() -> Outcome:
    """Return the outcome of a cell that an interrupt reached as it ended."""
    return {
        "kind": "interrupted",
        "exit_code": repl.INTERRUPTED_EXIT,
        "error": "KeyboardInterrupt",
        "error_type": "KeyboardInterrupt",
    }
