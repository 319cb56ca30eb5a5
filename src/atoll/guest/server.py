"""Serves the host's requests, one at a time: cells, variables, saved states."""

from __future__ import annotations

import builtins
import os
import sys
import time

from . import clone, delta, helpers, repl, rights, rpc, values
from . import context as context_file
from .bridge import Bridge, FailedQuery
from .channel import ChannelClosedError, HostCallError
from .memory import MemoryFence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .channel import Channel
    from .hidden import HiddenPackage
    from .interrupt import InterruptGate
    from .state import Keeper
    from .streams import StandardStreams

    Handler = Callable[[dict[str, Any]], Any]


CLONE_FDS = 5
"""Channel, streams and status socket of a clone."""


class BecameClone(BaseException):
    """Leave the request to the parent: the process that goes on here is the clone."""


class Server:
    """The guest as the host sees it."""

    def __init__(
        self,
        channel: Channel,
        gate: InterruptGate,
        streams: StandardStreams,
        folder: str,
        *,
        runtime: HiddenPackage,
        inherited: int = 0,
    ) -> None:
        self._channel, self._gate = channel, gate
        self._streams, self._folder, self._runtime = streams, folder, runtime
        self._repl = repl.Repl()
        self._bridge = Bridge(channel, self._context)
        self._offered: dict[str, Any] = {}
        self._known_keeper: Keeper | None = None
        self._memory = MemoryFence(None)
        self._inherited = inherited
        self._files: delta.Snapshot = {}
        self._private = False
        self._pid = os.getpid()
        self._clones: list[int] = []
        self._methods: dict[str, Handler] = {
            "initialize": self._initialize,
            "execute": self._execute,
            "get_variable": self._get_variable,
            "validate": self._validate,
            "fork": self._fork,
            "save": self._save,
            "restore": self._restore,
        }

    def rehearse(self) -> None:
        """Run an empty cell for nobody: a fork copies the pages that it touches, better now."""
        outcome = self._gate.run(lambda: repl.Repl().run("None"), _late_interrupt)
        outcome["files"] = delta.compare(self._files, delta.scan(self._folder))
        self._streams.renew()
        rpc.decode(rpc.request("rehearsal", "execute", outcome)[:-1])

    def serve(self) -> None:
        """Answer requests until the host goes."""
        self._say_ready()
        while True:
            try:
                message = self._channel.next_request()
                self._channel.send(self._answer(message))
                self._prepare()
            except BecameClone:
                self._say_ready()
            except ChannelClosedError:
                return

    def _say_ready(self) -> None:
        self._prepare()
        self._channel.send(rpc.notification("ready", {"python": list(sys.version_info[:3])}))

    def _prepare(self) -> None:
        """Make the next cell's streams and limit good, while the host reads the last answer."""
        self._streams.renew()
        self._memory.renew()

    def _answer(self, message: rpc.Message) -> bytes:
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

    def _initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        os.environ.update(params.get("env", {}))
        self._offer_names(params.get("tools", []))
        self._memory = MemoryFence(params.get("memory_bytes"), self._inherited)
        self._private = bool(params.get("private_folder"))  # nobody else puts files there
        shared = False
        if "context" in params:
            value, shared = self._load_context(params["context"])
            self._repl.namespace["context"] = value
            self._bridge.set_shared(value)
        else:
            self._repl.namespace["context"] = None
        return {"context_shared": shared}

    def _load_context(self, source: dict[str, Any]) -> tuple[Any, bool]:
        if "value" in source:
            return values.decode(source["value"]), False
        text, shared = context_file.load(
            rights.receive(), source["width"], source["length"], source["ascii"]
        )
        if not source["json"]:
            return text, shared
        import json

        return values.decode(json.loads(text)), False

    def _offer_names(self, tools: list[str]) -> None:
        """Built-ins, as IPython does it: imported modules see them, the namespace stays clean."""
        offered: dict[str, Any] = {}
        for owner in (self._bridge, helpers.ContextHelpers(self._context)):
            offered.update((name, getattr(owner, name)) for name in owner.NAMES)
        for one in (
            helpers.chunk_text,
            helpers.chunk_by_size,
            helpers.chunk_by_headers,
            helpers.extract_json,
            FailedQuery,
            HostCallError,
        ):
            offered[one.__name__] = one
        offered.update((name, self._bridge.tool(name)) for name in tools)
        for name, value in offered.items():
            setattr(builtins, name, value)
        self._offered = offered

    def _context(self) -> Any:
        return self._repl.namespace.get("context")

    def _execute(self, params: dict[str, Any]) -> dict[str, Any]:
        before = self._files if self._private else delta.scan(self._folder)
        started, cpu = time.perf_counter(), time.process_time()
        outcome: dict[str, Any] = self._gate.run(
            lambda: self._repl.run(params["code"]), _late_interrupt
        )
        outcome["duration_ms"] = (time.perf_counter() - started) * 1000
        outcome["cpu_ms"] = (time.process_time() - cpu) * 1000
        outcome["memory_bytes"] = _peak_memory(self._inherited)
        self._leave_if_child()
        self._streams.flush()
        self._files = delta.scan(self._folder)
        outcome["files"] = delta.compare(before, self._files)
        return outcome

    def _leave_if_child(self) -> None:
        if os.getpid() != self._pid:  # the cell forked, and this is the child at the cell's end
            self._streams.flush()
            os._exit(0)

    def _get_variable(self, params: dict[str, Any]) -> dict[str, Any]:
        name = params["name"]
        if name not in self._repl.namespace:
            return {"found": False}
        return self._gate.run(  # type: ignore[no-any-return]
            lambda: {"found": True, "value": values.encode(self._repl.namespace[name])},
            lambda: {"interrupted": True},
        )

    def _fork(self, _params: dict[str, Any]) -> dict[str, Any]:
        """Clone this process; the clone goes on with the descriptors that the host has sent."""
        self._reap_clones()
        fds: list[int] = []
        try:
            fds += [rights.receive() for _ in range(CLONE_FDS)]
            pid = os.fork()
        except OSError as exc:
            _close_all(fds)
            raise ValueError("no clone can be had: {}".format(exc)) from None
        if pid == 0:
            self._become_clone(fds)
        _close_all(fds)
        self._clones.append(pid)
        return {"forked": True}

    def _become_clone(self, fds: list[int]) -> None:
        """In the child: never returns, as the request was for the parent to answer."""
        *fds, status = fds
        try:
            clone.enter(status, self._folder)
            requests, answers, errors, output = self._streams.move_up(fds)
        except BaseException as exc:
            os.write(fds[2], str(exc).encode("utf-8", "replace"))  # the host adds it to its error
            os._exit(1)
        self._channel.reopen(requests, answers)
        self._streams.redirect(output, errors)
        self._pid, self._clones = os.getpid(), []
        raise BecameClone

    def _reap_clones(self) -> None:
        for pid in list(self._clones):
            try:
                ended, _ = os.waitpid(pid, os.WNOHANG)
            except OSError:
                ended = pid  # guest code was faster
            if ended:
                self._clones.remove(pid)

    def _save(self, params: dict[str, Any]) -> dict[str, Any]:
        return self._with_state_fd(
            lambda fd: self._keeper().save(
                fd, params["max_bytes"], params["cloudpickle"], self._private
            )
        )

    def _restore(self, params: dict[str, Any]) -> dict[str, Any]:
        answer = self._with_state_fd(
            lambda fd: self._keeper().restore(fd, params["max_bytes"], params["cloudpickle"])
        )
        self._files = delta.scan(self._folder)
        return answer

    def _keeper(self) -> Keeper:
        if self._known_keeper is None:
            with self._runtime:
                from .state import Keeper
            self._known_keeper = Keeper(self._repl.module, self._folder, self._offered)
        return self._known_keeper

    def _with_state_fd(self, work: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
        """`work` on the descriptor that the host sent; all that guest code may do is an answer."""
        fd = -1
        try:
            fd = rights.receive()
            answer: dict[str, Any] = self._gate.run(lambda: work(fd), lambda: {"interrupted": True})
        except BaseException as exc:
            answer = {"error": "{}: {}".format(type(exc).__name__, values.short_text(exc))}
        self._leave_if_child()
        try:
            os.close(fd)
        except OSError:
            pass  # guest code has done it
        return answer

    def _validate(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"valid": repl.validate(params["code"])}


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _peak_memory(inherited: int) -> int | None:
    try:
        import resource

        return max(0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - inherited)
    except ImportError:
        return None


def _late_interrupt() -> dict[str, Any]:
    """The interrupt came as the cell ended: it counts, as the host has asked for it."""
    return {
        "kind": "interrupted",
        "exit_code": 1,
        "error": "KeyboardInterrupt",
        "error_type": "KeyboardInterrupt",
    }
