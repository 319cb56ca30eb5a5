"""A Jupyter kernel whose cells run in a jailed session: `atoll kernel install`.

The kernel's process talks to Jupyter; the code runs in a sandbox, so an untrusted notebook has no
access to this machine. SECURITY: magics take paths inside the sandbox only. Displays of a cell come
from the guest; a front end renders them as those of any kernel.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll import __version__
from atoll.config import SandboxConfig
from atoll.errors import AtollError, ConfigError
from atoll.extras import hint
from atoll.integrations.opening import Opener
from atoll.service.dialects.jupyter import cell_messages
from atoll.service.dialects.jupyter.cell_messages import CellResult

try:
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_core.paths import jupyter_data_dir
except ImportError as exc:
    raise ImportError(
        f"atoll.integrations.jupyter_kernel needs jupyter-client. {hint('jupyter')}"
    ) from exc

try:
    from ipykernel import kernelbase
    from ipykernel.kernelapp import IPKernelApp
except ImportError as exc:
    raise ImportError(
        f"atoll.integrations.jupyter_kernel needs ipykernel. {hint('jupyter')}"
    ) from exc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atoll.sandbox.base import BaseSandbox

SPEC_NAME = "atoll"
MAIN = "main"
OPTIONS_VARIABLE = "ATOLL_KERNEL_OPTIONS"
_OWN = re.compile(r"\s*%(fork|checkpoint|rollback|context)(?:[ \t]+(\S+))?\s*\Z")
_Base: Any = kernelbase.Kernel  # half of it has types that do not fit


class AtollKernel(_Base):  # type: ignore[misc]
    """Runs cells in the sandbox that is current; %fork makes others."""

    implementation = "atoll"
    implementation_version = __version__
    banner = f"Atoll {__version__}: Python in a sandbox"
    language_info = cell_messages.LANGUAGE_INFO
    options: dict[str, Any] = {}  # noqa: RUF012 - set before it is launched

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._opener: Opener | None = None
        self._boxes: dict[str, BaseSandbox] = {}
        self._marks: dict[str, str] = {}
        self._current, self._printed = MAIN, cell_messages.Printed()
        self._silent = self._quiet = False
        self._past = cell_messages.Past()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told: Any = {}

    async def do_execute(
        self,
        code: str,
        silent: bool,  # noqa: FBT001 - the base class's
        store_history: bool = True,  # noqa: FBT001, FBT002
        user_expressions: dict[str, str] | None = None,
        allow_stdin: bool = False,  # noqa: ARG002, FBT001, FBT002
    ) -> dict[str, Any]:
        """Run a cell and publish its output."""
        self._printed, self._told = cell_messages.Printed(), self.get_parent()
        self._silent = self._quiet = silent
        if store_history and not silent:
            self._past.add(self.execution_count, code)
        try:
            own = _OWN.match(code)
            if own:
                said = await self._magic(*own.groups())
                self._publish("stream", {"name": "stdout", "text": said})
                return self._ok()
            box = await self._box()
            result, trace = CellResult.of(await box.execute(code)), self._printed.trace
            expressions = await self._evaluate(box, user_expressions or {})
        except AtollError as exc:
            name, words = type(exc).__name__, str(exc)
            return self._failed({"ename": name, "evalue": words, "traceback": [words]})
        return self._finish(result, trace, expressions)

    async def do_complete(self, code: str, cursor_pos: int) -> dict[str, Any]:
        """Complete a name or attribute by what exists in the sandbox."""
        word, asking = cell_messages.completing(code, cursor_pos)
        return cell_messages.completed(word, cursor_pos, await self._ask(asking))

    async def do_inspect(
        self,
        code: str,
        cursor_pos: int,
        detail_level: int = 0,  # noqa: ARG002
        omit_sections: Any = (),  # noqa: ARG002
    ) -> dict[str, Any]:
        """Describe the name at the cursor: its type, signature and documentation."""
        return cell_messages.inspected(await self._ask(cell_messages.inspecting(code, cursor_pos)))

    async def do_history(
        self,
        hist_access_type: str,
        output: bool,  # noqa: FBT001
        raw: bool,  # noqa: ARG002, FBT001
        **more: Any,
    ) -> dict[str, Any]:
        """Return earlier cells of this kernel."""
        kind = {"hist_access_type": hist_access_type, "output": output}
        return self._past.find({**more, **kind})

    async def do_is_complete(self, code: str) -> dict[str, Any]:
        """Say whether a front end should run the code or let the user type on."""
        return cell_messages.is_complete(code)

    async def interrupt_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Interrupt the running cell; this runs in the thread of the control channel."""
        box, loop = self._boxes.get(self._current), self._loop
        if box is not None and loop is not None:
            asyncio.run_coroutine_threadsafe(box.cancel(), loop)
        self.session.send(stream, "interrupt_reply", {"status": "ok"}, parent, ident=ident)

    async def do_shutdown(self, restart: bool) -> dict[str, Any]:  # noqa: FBT001
        """End the sandboxes."""
        boxes, self._boxes = list(self._boxes.values()), {}
        for box in boxes:
            await self._in_loop(box.destroy())
        if self._opener is not None:
            await self._in_loop(self._opener.close())
            self._opener = None
        return {"status": "ok", "restart": restart}

    async def _box(self) -> BaseSandbox:
        """Return the current sandbox; the first cell opens it."""
        if self._opener is None:
            self._loop = asyncio.get_running_loop()
            self._opener = Opener(SandboxConfig(**self.options))
        if self._current not in self._boxes:
            self._boxes[self._current] = await self._opener.open(self._on_output)
        return self._boxes[self._current]

    async def _magic(self, name: str, argument: str | None) -> str:
        """Run one of the kernel's own magics and return its message."""
        box, given = await self._box(), argument or ""
        run: dict[str, Callable[[BaseSandbox, str], Awaitable[str]]] = {
            "fork": self._fork,
            "checkpoint": self._checkpoint,
            "rollback": self._rollback,
            "context": self._context,
        }
        return await run[name](box, given)

    async def _fork(self, box: BaseSandbox, name: str) -> str:
        if name and name not in self._boxes:
            assert self._opener is not None
            self._boxes[name] = await self._opener.fork(box, self._on_output)
        self._current = name or self._current
        others = ", ".join(other for other in self._boxes if other != self._current)
        return f"cells run in {self._current}; others: {others or 'none'}\n"

    async def _checkpoint(self, box: BaseSandbox, name: str) -> str:
        mark = await box.checkpoint()
        self._marks[name or mark] = mark
        return f"checkpoint {name or mark}\n"

    async def _rollback(self, box: BaseSandbox, name: str) -> str:
        if name not in self._marks:
            known = ", ".join(self._marks) or "none"
            raise ConfigError(f"there is no checkpoint {name!r}; there are: {known}")
        await box.rollback(self._marks[name])
        return f"variables and files are as they were at {name}\n"

    async def _context(self, box: BaseSandbox, path: str) -> str:
        """Set the variable `context` to the text of a file of the sandbox."""
        [result] = await box.files.download([path])
        if result.content is None:
            raise ConfigError(f"%context {path}: {result.error}")
        text = result.content.decode("utf-8", "replace")
        await box.set_variable("context", text)
        return f"context: {len(text):,} characters\n"

    async def _ask(self, code: str) -> str:
        """Run code of the kernel itself, and return its output; "" if it fails."""
        self._silent = True
        if not code:
            return ""
        try:
            result = await (await self._box()).execute(code, timeout_ms=cell_messages.ASK_MS)
        except AtollError:
            return ""
        return result.stdout[:64_000] if result.success else ""

    async def _evaluate(self, box: BaseSandbox, wanted: dict[str, str]) -> dict[str, Any]:
        self._silent = True
        return {
            name: CellResult.of(await box.execute(code)).expression()
            for name, code in wanted.items()
        }

    def _on_output(self, stream: str, text: str) -> None:
        """Publish output while the cell runs."""
        if text := self._printed.hear(stream, text):
            self._publish("stream", {"name": stream, "text": text})

    def _publish(self, kind: str, content: dict[str, Any]) -> None:
        if not self._silent and self.session is not None:
            topic = self._topic(kind)
            self.session.send(self.iopub_socket, kind, content, self._told, ident=topic)

    def _finish(
        self, result: CellResult, trace: str, expressions: dict[str, Any]
    ) -> dict[str, Any]:
        self._silent = self._quiet
        if not result.success:
            return self._failed(result.failure(trace))
        if trace:
            self._publish("stream", {"name": "stderr", "text": trace})
        for kind, content in result.messages(self.execution_count):
            self._publish(kind, content)
        return {**self._ok(), "user_expressions": expressions}

    def _ok(self) -> dict[str, Any]:
        count = self.execution_count
        return {"status": "ok", "execution_count": count, "payload": [], "user_expressions": {}}

    def _failed(self, content: dict[str, Any]) -> dict[str, Any]:
        self._publish("error", content)
        return {"status": "error", "execution_count": self.execution_count, **content}

    async def _in_loop(self, work: Any) -> None:
        """Await work in the event loop of the sandboxes, from any thread."""
        if self._loop is None or self._loop is asyncio.get_running_loop():
            await work
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


def options_from_environment() -> dict[str, Any]:
    """Return the options of create_sandbox in ATOLL_KERNEL_OPTIONS, as JSON; none without it."""
    try:
        given = json.loads(os.environ.get(OPTIONS_VARIABLE) or "{}")
    except ValueError as exc:
        raise ConfigError(f"{OPTIONS_VARIABLE} is not JSON: {exc}") from None
    if not isinstance(given, dict):
        raise ConfigError(f"{OPTIONS_VARIABLE} must be a JSON object")
    return given


def install_spec(*, prefix: Path | None = None, name: str = SPEC_NAME) -> Path:
    """Write the kernel spec for this user, or below `prefix`; return its folder."""
    spec = {
        "argv": [
            sys.executable,
            "-m",
            "atoll.integrations.jupyter_kernel",
            "-f",
            "{connection_file}",
        ],
        "display_name": "Python (Atoll sandbox)",
        "language": "python",
        "interrupt_mode": "message",
    }
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel.json").write_text(json.dumps(spec, indent=2), encoding="utf-8")
        manager = KernelSpecManager()
        where = {"user": True} if prefix is None else {"prefix": str(prefix)}
        return Path(manager.install_kernel_spec(folder, name, **where))


def remove_spec(*, prefix: Path | None = None, name: str = SPEC_NAME) -> bool:
    """Delete the kernel spec; return whether there was one."""
    above = Path(jupyter_data_dir()) if prefix is None else prefix / "share" / "jupyter"
    manager = KernelSpecManager(kernel_dirs=[str(above / "kernels")])
    try:
        manager.remove_kernel_spec(name)
    except KeyError:
        return False
    return True


if __name__ == "__main__":
    AtollKernel.options = options_from_environment()
    IPKernelApp.launch_instance(kernel_class=AtollKernel)
