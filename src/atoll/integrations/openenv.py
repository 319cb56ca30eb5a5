"""OpenEnv in sandboxes: environment servers from images or folders, and executors of code.

    client = EchoEnv.from_docker_image("echo-env:latest", provider=AtollContainerProvider())

PyExecutor and PythonExecutor stand in for those of coding_env and repl_env: the environment's
server runs where it did, and the code of the model in a sandbox.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.concurrency.portal import Portal
from atoll.errors import AtollError, ConfigError
from atoll.images import find_image
from atoll.integrations.common import as_json, missing, open_box
from atoll.integrations.rollouts import HOST, RolloutBox, Wanted
from atoll.policy import Capability
from atoll.types import stderr_with_error

try:
    from openenv.core.containers.runtime.providers import ContainerProvider, RuntimeProvider
    from openenv.core.env_server.types import CodeExecResult
except ImportError as exc:
    raise ImportError(missing("openenv", "openenv")) from exc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from atoll.integrations.rollouts import BoxProcess
    from atoll.sandbox.blocking import SyncSandbox

PORT = 8000
"""Where OpenEnv's servers listen."""
PROJECT = "/srv/env"
POLL_SECONDS = 0.05
LAST_WORDS = 2000
SHOWN = 500
"""Characters of a variable in an observation."""


class _Server:
    """One sandbox with an environment's server in it."""

    def __init__(self) -> None:
        self._box: RolloutBox | None = None
        self._process: BoxProcess | None = None

    def _serve(self, wanted: Wanted, command: Sequence[str] | None, port: int | None) -> str:
        if self._box is not None:
            raise RuntimeError("the environment runs already: stop it first")
        try:
            return Portal.shared().run(self._open(wanted, command, port))
        except (AtollError, OSError) as exc:
            self._end()
            raise RuntimeError(f"the environment did not start: {exc}") from exc

    async def _open(self, wanted: Wanted, command: Sequence[str] | None, port: int | None) -> str:
        self._box = await RolloutBox.open(wanted)
        self._process = await self._box.start(list(command or _command(wanted.image)), stdin=False)
        return await self._box.url(PORT, port)

    def _wait(self, base_url: str, timeout_s: float) -> None:
        """Ask for /health until it is 200; no proxy is used on this machine's loopback."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            try:
                with opener.open(f"{base_url}/health", timeout=2) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                self._check_running()
            time.sleep(POLL_SECONDS)
        raise TimeoutError(f"the environment at {base_url} was not ready within {timeout_s} s")

    def _check_running(self) -> None:
        """Raise RuntimeError with the last words of a server that has ended."""
        code = self._process and Portal.shared().run(self._process.poll())
        if self._process is not None and code is not None:
            said = Portal.shared().run(self._process.read("stderr")).decode("utf-8", "replace")
            raise RuntimeError(f"the environment's server ended with {code}: {said[-LAST_WORDS:]}")

    def _end(self) -> None:
        box, self._box, self._process = self._box, None, None
        if box is not None:
            Portal.shared().run(box.close())


class AtollContainerProvider(_Server, ContainerProvider):  # type: ignore[misc]
    """Runs an image's own command in a sandbox, which reaches `network` and nothing else.

    `command` replaces the image's, and `image` those that are asked for ("host": no image).
    `options` are those of create_sandbox.
    """

    def __init__(
        self,
        *,
        image: str | None = None,
        command: Sequence[str] | None = None,
        network: Sequence[str] = (),
        **options: Any,
    ) -> None:
        super().__init__()
        self._image, self._command = image, command
        self._network, self._options = network, options

    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> str:
        """Start an environment, and return its URL; RuntimeError if it does not start."""
        wanted = Wanted(
            image=self._image or image,
            env=env_vars or {},
            network=self._network,
            options={**self._options, **kwargs},
        )
        return self._serve(wanted, self._command, port)

    def stop_container(self) -> None:
        """End the sandbox. Calling it again does nothing."""
        self._end()

    def close(self) -> None:
        """End the sandbox, if it still runs."""
        self._end()

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        """Wait until the environment answers; TimeoutError if it does not."""
        self._wait(base_url, timeout_s)


class AtollRuntimeProvider(_Server, RuntimeProvider):  # type: ignore[misc]
    """Runs the server of a project's folder in a sandbox, with this interpreter's packages.

    The folder is mounted read-only. `options` are those of create_sandbox, such as `python`.
    """

    def __init__(
        self,
        project_path: str,
        app: str = "server.app:app",
        *,
        network: Sequence[str] = (),
        **options: Any,
    ) -> None:
        super().__init__()
        self._folder, self._app = Path(project_path).resolve(), app
        self._network, self._options = network, options
        self._url = ""

    def start(
        self,
        port: int | None = None,
        env_vars: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> str:
        """Start the environment, and return its URL; RuntimeError if it does not start."""
        options = {"python": sys.executable, **self._options, **kwargs}
        limits = dict(options.pop("policy", {}))
        limits["mounts"] = [(str(self._folder), PROJECT), *limits.get("mounts", ())]
        wanted = Wanted(
            env={"PYTHONPATH": PROJECT, **(env_vars or {})},
            network=self._network,
            options={**options, "policy": limits},
        )
        served = ["--host", "127.0.0.1", "--port", str(PORT)]
        command = ["python3", "-m", "uvicorn", self._app, *served]
        self._url = self._serve(wanted, command, port)
        return self._url

    def stop(self) -> None:
        """End the sandbox. Calling it again does nothing."""
        self._end()

    def wait_for_ready(self, timeout_s: float = 30.0) -> None:
        """Wait until the environment answers; TimeoutError if it does not."""
        self._wait(self._url, timeout_s)


class PyExecutor:
    """Runs code for coding_env: `run(code)` returns a CodeExecResult."""

    def __init__(
        self,
        additional_imports: list[str] | None = None,  # noqa: ARG002 - everything may be imported
        **options: Any,
    ) -> None:
        self._box = open_box(options, frozenset({Capability.STATE}))
        self.close = weakref.finalize(self, self._box.destroy)
        """Ends the sandbox; coding_env drops executors without a word."""

    def run(self, code: str) -> CodeExecResult:
        """Run code; the last expression's value follows what was printed."""
        result = self._box.execute(code)
        stderr = stderr_with_error(result.stderr, result.error, result.kind)
        parts = [result.stdout.rstrip("\n"), _shown(result.value)]
        return CodeExecResult(
            stdout="\n".join(part for part in parts if part),
            stderr=stderr,
            exit_code=0 if result.success else result.exit_code or 1,
        )


class PythonExecutor:
    """Runs code for repl_env: variables stay, functions of the environment run on its side."""

    def __init__(
        self,
        max_output_length: int = 8192,
        allowed_imports: list[str] | None = None,  # noqa: ARG002 - everything may be imported
        **options: Any,
    ) -> None:
        self.max_output_length, self._options = max_output_length, options
        self._before: list[str] = []
        self._running = False
        self._open()

    def set_context(self, context: str, variable_name: str = "context") -> None:
        """Set the variable that holds the context."""
        self.set_variable(variable_name, context)

    def set_variable(self, name: str, value: Any) -> None:
        """Set a variable."""
        self._box.set_variable(name, value)

    def get_variable(self, name: str) -> Any:
        """Return a variable's value as plain data; None if it does not exist."""
        return as_json(self._box.get_variable(name, plain=True))

    def list_variables(self) -> list[str]:
        """Return the names of the variables and of the functions that were injected.

        A function that running code has called gets those from before: the code waits for it.
        """
        names = self._before if self._running else self._box.variables().names
        return [*names, *self._box.tools]

    def inject_function(self, name: str, func: Callable[..., Any]) -> None:
        """Let code call a function, which runs in this process."""
        self._box.add_tool(func, name=name)

    def execute(self, code: str) -> dict[str, Any]:
        """Run code; return what an observation of repl_env holds."""
        self._before, started = self._box.variables().names, time.monotonic()
        self._running = True
        try:
            result = self._box.execute(code)
        finally:
            self._running = False
        stderr = stderr_with_error(result.stderr, result.error, result.kind)
        parts = [result.stdout.rstrip("\n"), _shown(result.value)]
        return {
            "stdout": self._cut("\n".join(part for part in parts if part)),
            "stderr": self._cut(stderr),
            "locals_snapshot": self._new_variables(),
            "execution_time": time.monotonic() - started,
            "success": result.success,
            "exception": None if result.success else stderr,
        }

    def reset(self) -> None:
        """Start afresh, without variables and functions."""
        self.close()
        self._open()

    def _open(self) -> None:
        needed = frozenset({Capability.STATE, Capability.BRIDGE})
        self._box: SyncSandbox = open_box(self._options, needed)
        self.close = weakref.finalize(self, self._box.destroy)

    def _new_variables(self) -> dict[str, str]:
        names = sorted({*self._box.variables().names} - {*self._before})
        shown = f"{{n: repr(globals()[n])[:{SHOWN + 1}] for n in {names!r}}}"
        found: Mapping[str, str] = self._box.execute(shown).value if names else {}
        return {
            name: f"{text[:SHOWN]}..." if len(text) > SHOWN else text
            for name, text in (found or {}).items()
        }

    def _cut(self, text: str) -> str:
        if len(text) <= self.max_output_length:
            return text
        return f"{text[: self.max_output_length]}\n... (truncated, total {len(text)} chars)"


def _shown(value: Any) -> str:
    return "" if value is None else json.dumps(as_json(value))


def _command(image: str | None) -> tuple[str, ...]:
    """Return the command of an image that is in the store."""
    held = None if image is None or image == HOST else find_image(image)
    if held is None:
        raise ConfigError(f"{image or 'a sandbox without an image'} has no command: give `command`")
    try:
        return (*held.image.config.entrypoint, *held.image.config.command)
    finally:
        held.close()
