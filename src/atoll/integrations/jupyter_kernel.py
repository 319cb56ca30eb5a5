"""A Jupyter kernel whose cells run in a jailed session: `atoll kernel install`.

The kernel's process speaks to Jupyter; the code runs in a sandbox, so a notebook of a stranger has
no access to this machine. SECURITY: magics take paths inside the sandbox only. What a cell shows is
the guest's; a front end treats it as that of any kernel.
"""

from __future__ import annotations

import ast
import asyncio
import base64
import codeop
import json
import os
import platform
import re
from typing import TYPE_CHECKING, Any

from atoll import __version__
from atoll.config import SandboxConfig, backend_from_environment
from atoll.errors import AtollError, ConfigError
from atoll.extras import hint
from atoll.guest import magics
from atoll.integrations.opening import Opener

try:
    from ipykernel import kernelbase
    from ipykernel.kernelapp import IPKernelApp
except ImportError as exc:
    raise ImportError(
        f"atoll.integrations.jupyter_kernel needs ipykernel. {hint('jupyter')}"
    ) from exc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atoll.sandbox import BaseSandbox
    from atoll.types import SandboxResult

MAIN = "main"
OPTIONS_VARIABLE = "ATOLL_KERNEL_OPTIONS"
MOST_HISTORY = 10_000
_TRACEBACK = "Traceback (most recent call last):"
_TEXT_FORMS = ("text/html", "text/markdown", "text/latex", "image/svg+xml", "application/json")
_OWN = re.compile(r"\s*%(fork|checkpoint|rollback|context)(?:[ \t]+(\S+))?\s*\Z")
_NAME = re.compile(r"[A-Za-z_][\w.]*\Z")


_Base: Any = kernelbase.Kernel  # half of it has types that do not fit


class AtollKernel(_Base):  # type: ignore[misc]
    """Runs cells in the sandbox that is current; %fork makes others."""

    implementation = "atoll"
    implementation_version = __version__
    banner = f"Atoll {__version__}: Python in a sandbox"
    language_info = {  # noqa: RUF012 - as the base class has it
        "name": "python",
        "version": platform.python_version(),
        "mimetype": "text/x-python",
        "file_extension": ".py",
        "pygments_lexer": "ipython3",
        "codemirror_mode": {"name": "ipython", "version": 3},
        "nbconvert_exporter": "python",
    }
    options: dict[str, Any] = {}  # noqa: RUF012 - set before it is launched

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._opener: Opener | None = None
        self._boxes: dict[str, BaseSandbox] = {}
        self._marks: dict[str, str] = {}
        self._current, self._held = MAIN, ""
        self._silent = self._quiet = False
        self._past: list[tuple[int, str]] = []
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
        """Run a cell and publish what it shows."""
        self._held, self._told = "", self.get_parent()
        self._silent = self._quiet = silent
        if store_history and not silent:
            self._past = [*self._past[-MOST_HISTORY:], (self.execution_count, code)]
        try:
            own = _OWN.match(code)
            if own:
                self._publish(
                    "stream", {"name": "stdout", "text": await self._magic(*own.groups())}
                )
                return self._ok()
            box = await self._box()
            result = await box.execute(code)
            held, self._held = self._held, ""
            expressions = await self._evaluate(box, user_expressions or {})
        except AtollError as exc:
            return self._failed(type(exc).__name__, str(exc), [str(exc)])
        return self._finish(result, held, expressions)

    async def do_complete(self, code: str, cursor_pos: int) -> dict[str, Any]:
        """Complete a name or attribute by what exists in the sandbox."""
        found = re.search(r"[A-Za-z_][\w.]*\Z", code[:cursor_pos])
        word = found[0] if found else ""
        kind = "attr" if "." in word else "global"
        lookup = f"__import__('rlcompleter').Completer(globals()).{kind}_matches({word!r})"
        told = await self._ask(f"print(*{lookup}, sep='\\n')") if word else ""
        matches = sorted({one.rstrip("( ") for one in told.splitlines() if one.startswith(word)})
        start = cursor_pos - len(word)
        return {
            "matches": matches[:500],
            "cursor_start": start,
            "cursor_end": cursor_pos,
            "metadata": {},
            "status": "ok",
        }

    async def do_inspect(
        self,
        code: str,
        cursor_pos: int,
        detail_level: int = 0,  # noqa: ARG002
        omit_sections: Any = (),  # noqa: ARG002
    ) -> dict[str, Any]:
        """Describe the name at the cursor: its type, signature and documentation."""
        name = _around(code, cursor_pos)
        text = ""
        if _NAME.match(name):
            lookup = (
                f"__import__('pydoc').render_doc({name}, renderer=__import__('pydoc').plaintext)"
            )
            text = await self._ask(f"print({lookup})")
        data = {"text/plain": text} if text else {}
        return {"status": "ok", "data": data, "metadata": {}, "found": bool(data)}

    async def do_history(  # noqa: PLR0917 - the base class's
        self,
        hist_access_type: str,
        output: bool,  # noqa: FBT001
        raw: bool,  # noqa: ARG002, FBT001
        session: Any = None,  # noqa: ARG002
        start: int | None = None,
        stop: int | None = None,
        n: int | None = None,
        pattern: str | None = None,
        unique: bool = False,  # noqa: FBT001, FBT002
    ) -> dict[str, Any]:
        """Return earlier cells of this kernel."""
        rows: list[Any]
        rows = [(0, number, (code, None) if output else code) for number, code in self._past]
        if hist_access_type == "range":
            rows = [row for row in rows if (start or 0) <= row[1] < (stop or MOST_HISTORY)]
        elif hist_access_type == "search":
            import fnmatch  # noqa: PLC0415 - rarely asked for

            known = [row for row in self._past if fnmatch.fnmatchcase(row[1], pattern or "*")]
            known = (
                [(one, code) for code, one in {c: i for i, c in known}.items()] if unique else known
            )
            rows = [(0, number, (code, None) if output else code) for number, code in known]
        return {"status": "ok", "history": rows[-n:] if n else rows}

    async def do_is_complete(self, code: str) -> dict[str, Any]:
        """Say whether a front end should run the code or let the user type on."""
        try:
            python = magics.translate(code)
            done = codeop.compile_command(python[0] if python else code, symbol="exec")
            if done is not None and _block_is_open(code):
                done = None
        except (SyntaxError, ValueError, OverflowError):
            return {"status": "invalid"}
        if done is not None:
            return {"status": "complete"}
        last = code.splitlines()[-1] if code.strip() else ""
        indent = last[: len(last) - len(last.lstrip())] + (
            "    " if last.rstrip().endswith(":") else ""
        )
        return {"status": "incomplete", "indent": indent}

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
            self._boxes[self._current] = await self._opener.open(self._hear)
        return self._boxes[self._current]

    async def _magic(self, name: str, argument: str | None) -> str:
        """Run a magic of the kernel's own and return what it says."""
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
            self._boxes[name] = await self._opener.fork(box, self._hear)
        self._current = name or self._current
        others = ", ".join(one for one in self._boxes if one != self._current)
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
        [found] = await box.files.download([path])
        if found.content is None:
            raise ConfigError(f"%context {path}: {found.error}")
        text = found.content.decode("utf-8", "replace")
        await box.set_variable("context", text)
        return f"context: {len(text):,} characters\n"

    async def _ask(self, code: str) -> str:
        """Run code that is not the user's, and return what it prints; "" if it fails."""
        self._silent = True
        try:
            result = await (await self._box()).execute(code, timeout_ms=5_000)
        except AtollError:
            return ""
        return result.stdout[:64_000] if result.success else ""

    async def _evaluate(self, box: BaseSandbox, wanted: dict[str, str]) -> dict[str, Any]:
        self._silent, found = True, {}
        for name, code in wanted.items():
            one = await box.execute(code)
            fault: dict[str, Any]
            fault = {"ename": one.error_type, "evalue": one.error, "traceback": []}
            found[name] = (
                {"status": "ok", "data": {"text/plain": one.value_repr or "None"}, "metadata": {}}
                if one.success
                else {"status": "error", **fault}
            )
        return found

    def _hear(self, stream: str, text: str) -> None:
        """Publish output as it comes; a traceback is held back, as it may be the cell's error."""
        if stream == "stderr":
            self._held += text
            at = self._held.find(_TRACEBACK)
            text, self._held = (self._held, "") if at < 0 else (self._held[:at], self._held[at:])
        if text:
            self._publish("stream", {"name": stream, "text": text})

    def _publish(self, kind: str, content: dict[str, Any]) -> None:
        if not self._silent and self.session is not None:
            topic = self._topic(kind)
            self.session.send(self.iopub_socket, kind, content, self._told, ident=topic)

    def _finish(
        self, result: SandboxResult, held: str, expressions: dict[str, Any]
    ) -> dict[str, Any]:
        self._silent, self._held = self._quiet, ""
        if not result.success:
            kind, said = result.error_type or result.kind.value, result.error or ""
            said = said.removeprefix(f"{kind}: ")
            return self._failed(kind, said, held.splitlines() or [f"{kind}: {said}"])
        if held:
            self._publish("stream", {"name": "stderr", "text": held})
        self._show(result)
        return {**self._ok(), "user_expressions": expressions}

    def _show(self, result: SandboxResult) -> None:
        """Publish images as displays, and the value with its richest forms as the result."""
        forms: dict[str, Any] = {}
        for one in result.displays:
            if one.media_type in _TEXT_FORMS:
                forms[one.media_type] = one.data.decode("utf-8", "replace")
                continue
            data = {one.media_type: base64.b64encode(one.data).decode()}
            self._publish("display_data", {"data": data, "metadata": {}, "transient": {}})
        if result.value_repr is not None and result.value is not None:
            data = {"text/plain": result.value_repr, **forms}
            count = self.execution_count
            self._publish(
                "execute_result", {"execution_count": count, "data": data, "metadata": {}}
            )

    def _ok(self) -> dict[str, Any]:
        count = self.execution_count
        return {"status": "ok", "execution_count": count, "payload": [], "user_expressions": {}}

    def _failed(self, kind: str, said: str, trace: list[str]) -> dict[str, Any]:
        content = {"ename": kind, "evalue": said, "traceback": trace}
        self._publish("error", content)
        return {"status": "error", "execution_count": self.execution_count, **content}

    async def _in_loop(self, work: Any) -> None:
        """Await work in the loop that the sandboxes live in, from whichever thread."""
        if self._loop is None or self._loop is asyncio.get_running_loop():
            await work
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


def _block_is_open(code: str) -> bool:
    """Whether code that compiles ends inside a block: an empty line closes it."""
    last = code.rsplit("\n", 1)[-1]
    if not last[:1].isspace() or not last.strip() or magics.translate(code):
        return False
    return hasattr(ast.parse(code).body[-1], "body")


def _around(code: str, cursor: int) -> str:
    """Return the dotted name that the cursor is in or behind."""
    before = re.search(r"[A-Za-z_][\w.]*\Z", code[:cursor])
    after = re.match(r"\w*", code[cursor:])
    return (before[0] if before else "") + (after[0] if after else "")


def options_from_environment() -> dict[str, Any]:
    """Return the options of create_sandbox in ATOLL_KERNEL_OPTIONS, as JSON; none without it."""
    try:
        given = json.loads(os.environ.get(OPTIONS_VARIABLE) or "{}")
    except ValueError as exc:
        raise ConfigError(f"{OPTIONS_VARIABLE} is not JSON: {exc}") from None
    if not isinstance(given, dict):
        raise ConfigError(f"{OPTIONS_VARIABLE} must be a JSON object")
    return {"backend": backend_from_environment(), **given}


if __name__ == "__main__":
    AtollKernel.options = options_from_environment()
    IPKernelApp.launch_instance(kernel_class=AtollKernel)
