"""POST /run_code and /run_jupyter: a program in a fresh sandbox, with a line to wait in.

What waits has not begun: its time limit starts with its process. It waits no longer than clients
do, which give up `run_timeout` and some seconds after they asked.

The steps of a language are lines of bash, run in the working folder. The first word of the first
step is the program that has to be there: on this machine, or in the operator's image.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import shlex
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import UNSET

from atoll.sandbox.base import check_code
from atoll.service.core.work import MAX_RETURNED_BYTES, RunRequest
from atoll.service.dialects.jupyter.cell_messages import CellResult, Printed
from atoll.service.dialects.sandboxfusion import wire
from atoll.service.dialects.sandboxfusion.wire import JupyterAnswer, Ran, RunAnswer
from atoll.service.http import bodies
from atoll.service.http.problems import Problem, ProblemInfo, decode
from atoll.service.http.requests import Json, until_gone
from atoll.service.storage.idempotency import Answer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from atoll.config import SandboxConfig
    from atoll.sandbox.base import BaseSandbox
    from atoll.service.access.keys import Principal
    from atoll.service.core.executions import Execution
    from atoll.service.core.service import Service
    from atoll.service.http.requests import ApiRequest
    from atoll.types import SandboxResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """How programs of a language are compiled and run."""

    file: str
    run: str
    compile: str = ""
    """Unset: there is nothing to compile."""
    beside: dict[str, str] = field(default_factory=dict)
    """Files that the steps need beside the program."""

    @property
    def toolchain(self) -> str:
        """The program that has to be there."""
        return (self.compile or self.run).split()[0]


PYTHON = ("python", "python_gpu")
"""These run in a warm interpreter: no step starts one."""
_CSPROJ = (
    '<Project Sdk="Microsoft.NET.Sdk"><PropertyGroup><OutputType>Exe</OutputType>'
    "<TargetFramework>net8.0</TargetFramework></PropertyGroup></Project>"
)
LANGUAGES = {
    "python": Language(file="main.py", run="python3 main.py"),
    "python_gpu": Language(file="main.py", run="python3 main.py"),
    "pytest": Language(file="main.py", run="pytest main.py"),
    "bash": Language(file="main.sh", run="bash main.sh"),
    "cpp": Language(
        file="main.cpp", compile="g++ -std=c++17 main.cpp -o main -lpthread", run="./main"
    ),
    "cuda": Language(file="main.cu", compile="nvcc main.cu -o main", run="./main"),
    "nodejs": Language(file="main.js", run="node main.js"),
    "typescript": Language(file="main.ts", run="tsx main.ts"),
    "go": Language(file="main.go", compile="go build -o main main.go", run="./main"),
    "go_test": Language(file="main_test.go", run="go test main_test.go"),
    "java": Language(
        file="Main.java", compile="javac -cp '.:*' Main.java", run="java -cp '.:*' -ea Main"
    ),
    "csharp": Language(
        file="Program.cs", run="dotnet run --project .", beside={"main.csproj": _CSPROJ}
    ),
    "php": Language(file="main.php", run="php -f main.php"),
    "rust": Language(file="main.rs", compile="rustc main.rs -o main", run="./main"),
    "lua": Language(file="main.lua", run="lua main.lua"),
    "R": Language(file="main.R", run="Rscript main.R"),
    "perl": Language(file="main.pl", run="perl main.pl"),
    "D_ut": Language(file="main.d", compile="dmd main.d -unittest -of=main", run="./main"),
    "ruby": Language(file="main.rb", run="ruby main.rb"),
    "scala": Language(file="main.scala", run="scala main.scala"),
    "julia": Language(file="main.jl", run="julia main.jl"),
    "kotlin_script": Language(file="main.kts", run="kotlin main.kts"),
    "verilog": Language(file="main.sv", compile="iverilog -g2012 -o main main.sv", run="vvp main"),
    "swift": Language(file="main.swift", compile="swiftc main.swift -o main", run="./main"),
    "racket": Language(file="main.rkt", run="racket main.rkt"),
}


OUTPUT_BYTES = 1 << 20
"""Bytes kept of stdout, and of stderr."""
LEAST_PATIENCE, PATIENCE = 1.5, 8.0
"""Seconds in the line: of clients that give up 2 s, and 10 s, after the time limits."""
MIB = 1 << 20
LEAST_MEMORY = 16 * MIB
PLAIN = "bare"
"""The tier of sandboxes that no Python runs in."""


async def ping(_call: ApiRequest) -> str:
    """Say that the service lives."""
    return "pong"


async def run_code(call: ApiRequest) -> Json[RunAnswer]:
    """Run a program, compiled before if its language is; the answer has its output and files."""
    given = await call.json(wire.RunCode, read=wire.read)
    language = LANGUAGES.get(given.language)
    if language is None:
        known = ", ".join(LANGUAGES)
        raise Problem(422, "invalid", f"no language {given.language!r:.40}: there are {known}")
    check_code(given.code)
    request = Program(
        code=given.code,
        config=_config(call, given, _image(call, given.language), _tier(given)),
        files=await _files(call, given),
        given=given,
        language=language,
        until=_now() + _patience(given, language),
    )
    return Json.of(await _answer(call, request))


async def run_jupyter(call: ApiRequest) -> Json[JupyterAnswer]:
    """Run cells one after the other in a fresh session; one that fails does not end it."""
    given = await call.json(wire.RunJupyter, read=wire.read)
    if len(given.cells) > wire.MAX_CELLS:
        raise Problem(422, "invalid", f"at most {wire.MAX_CELLS:,} cells")
    for cell in given.cells:
        check_code(cell)
    request = Notebook(
        code="\n".join(given.cells),
        config=_config(call, given),
        files=await _files(call, given),
        given=given,
        until=_now() + PATIENCE,
    )
    return Json.of(await _answer(call, request))


async def _answer(call: ApiRequest, request: _Request) -> Answer:
    """Run a request in its turn; 504 if that does not come in time."""
    service = call.service
    async with service.sandboxfusion.place(call.principal, request.until):
        execution = service.start(call.principal, request, inputs=call.held)
        if not await until_gone(call.request.receive, execution.wait()):
            await execution.cancel()
            raise wire.busy("the client went away")
    if execution.status < 400:
        return Answer(200, execution.body)
    ended = decode(execution.body, ProblemInfo)
    raise Problem(execution.status, ended.code, ended.detail)


class SandboxFusion:
    """What the requests of the dialect share: a line for each key, and what is installed."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self.found: set[tuple[str, str | None]] = set()
        """Toolchains that were there, with the images in which they were."""

    @contextlib.asynccontextmanager
    async def place(self, principal: Principal, until: float) -> AsyncIterator[None]:
        """Wait until the key may have one more execution; 504 if it is not so in time."""
        line = self._lines.setdefault(principal.key, _Line(principal.quota.executions))
        line.users += 1
        try:
            try:
                async with asyncio.timeout_at(until):
                    await line.places.acquire()
            except TimeoutError:
                raise wire.busy(f"{line.users} requests of the key run or wait") from None
            try:
                yield
            finally:
                line.places.release()
        finally:
            line.users -= 1
            if not line.users:
                self._lines.pop(principal.key, None)


class _Line:
    """The requests of one key."""

    def __init__(self, most: int) -> None:
        self.places, self.users = asyncio.Semaphore(most), 0


class _Request(RunRequest, kw_only=True):
    """What one request asks for, in a sandbox of its own."""

    until: float
    """When its turn has to have come, by the loop's clock."""

    @contextlib.asynccontextmanager
    async def in_turn(self, execution: Execution, service: Service) -> AsyncIterator[None]:
        """Wait for a place among all that run; 504 if none is free in time."""
        async with contextlib.AsyncExitStack() as held:
            try:
                async with asyncio.timeout_at(self.until):
                    await held.enter_async_context(
                        service.limit.slot(None, execution.wait_in_queue)
                    )
            except TimeoutError:
                waiting = service.limit.waiting
                raise wire.busy(f"{waiting} executions wait for their turn") from None
            execution.reserve_output(self.config)
            yield

    async def fetch(
        self, execution: Execution, box: BaseSandbox, paths: list[str]
    ) -> dict[str, str]:
        """Return files as base64; files that are missing or do not fit are left out."""
        files: dict[str, str] = {}
        room, held = MAX_RETURNED_BYTES, execution.held
        for path in paths:
            execution.enter("files")
            (loaded,) = await box.files.download([path])
            if loaded.content is None or len(loaded.content) > room:
                continue
            room -= len(loaded.content)
            # It is held as bytes, as base64 in the answer, and in the encoded answer.
            held.grow(4 * len(loaded.content))
            encoded = await asyncio.to_thread(base64.b64encode, loaded.content)
            files[path] = encoded.decode()
        return files


class Program(_Request, kw_only=True):
    """A program to compile and run."""

    given: wire.RunCode
    language: Language

    async def perform(self, execution: Execution, service: Service) -> RunAnswer:
        """Run it, and return the answer."""
        given, limited = self.given, execution.principal.quota.cpu_seconds_per_day is not None
        async with self.in_turn(execution, service):
            warm = given.language in PYTHON and self.config.image is None and service.fleet is None
            if warm and service.runner and not (self.files or given.fetch_files or limited):
                execution.begin()
                result = await service.runner(
                    given.code,
                    self.config,
                    timeout_ms=self._ms(execution, given.run_timeout),
                    stdin=given.stdin,
                    script=True,
                )
                service.ended(execution, result, (result.cpu_ms or 0) / 1000)
                return _judged(RunAnswer(run_result=Ran.of_program(result)))
            async with self._opened(execution, service, self.config) as (box, meter):
                await self.put_files(execution, service, box)
                execution.interrupt = box.cancel
                if warm:
                    answer, alive = await self._run_warm(execution, service, box)
                else:
                    answer, alive = await self._run_steps(execution, service, box)
                await service.cpu.charge(meter)
                if meter.stopped is not None:
                    raise meter.stopped
                if alive:
                    answer.files = await self.fetch(execution, box, given.fetch_files)
                return _judged(answer)

    async def _run_warm(
        self, execution: Execution, service: Service, box: BaseSandbox
    ) -> tuple[RunAnswer, bool]:
        """Run Python in the sandbox's own interpreter."""
        given = self.given
        execution.begin()
        result = await box.execute(
            given.code,
            timeout_ms=self._ms(execution, given.run_timeout),
            stdin=given.stdin,
            script=True,
        )  # type: ignore[call-arg]
        service.ended(execution, result)
        return RunAnswer(run_result=Ran.of_program(result)), not result.state_lost

    async def _run_steps(
        self, execution: Execution, service: Service, box: BaseSandbox
    ) -> tuple[RunAnswer, bool]:
        """Compile and run by commands."""
        given, language, answer = self.given, self.language, RunAnswer()
        await self._require_toolchain(service, box)
        beside = [(name, text.encode()) for name, text in language.beside.items()]
        for path, data in [*beside, (language.file, given.code.encode("utf-8", "replace"))]:
            await box.files.upload([(path, data)])
        execution.begin()
        if language.compile:
            seconds = 10.0 if given.compile_timeout is UNSET else given.compile_timeout
            answer.compile_result = await self._step(execution, box, language.compile, seconds)
        if answer.compile_result is None or answer.compile_result.is_good:
            seconds, text = given.run_timeout, given.stdin
            answer.run_result = await self._step(execution, box, language.run, seconds, text)
        service.quotas.executed(execution.principal)
        return answer, True

    async def _require_toolchain(self, service: Service, box: BaseSandbox) -> None:
        """Raise the problem that a toolchain is missing: no program's fault is judged by that."""
        known, name = service.sandboxfusion.found, self.language.toolchain
        if (name, self.config.image) in known:
            return
        looked = await box.shell(f"command -v {shlex.quote(name)}")
        if looked.exit_code != 0:
            where = f"in the image {self.config.image}" if self.config.image else "in the sandbox"
            text = f"{self.given.language} needs {name}, which is not {where}"
            hint = "install it below /usr, or name an image: atoll serve --language-image"
            raise Problem(501, "unsupported", f"{text}: {hint} {self.given.language}=REFERENCE")
        known.add((name, self.config.image))

    async def _step(
        self,
        execution: Execution,
        box: BaseSandbox,
        line: str,
        seconds: float,
        stdin: str | None = None,
    ) -> Ran:
        begun, limit = time.monotonic(), self._ms(execution, seconds)
        response = await box.shell(line, timeout_ms=limit, stdin=stdin, merge_stderr=False)
        return Ran.of_command(response, time.monotonic() - begun)

    def _ms(self, execution: Execution, seconds: float) -> float:
        """Return a time limit in milliseconds, within what the key may have."""
        return min(max(seconds, 0.001) * 1000, execution.principal.quota.timeout_ms)


class Notebook(_Request, kw_only=True):
    """Cells to run in one session."""

    given: wire.RunJupyter

    async def perform(self, execution: Execution, service: Service) -> JupyterAnswer:
        """Run the cells, and return the answer."""
        given, answer = self.given, JupyterAnswer()
        async with (
            self.in_turn(execution, service),
            self._opened(execution, service, self.config) as (box, meter),
        ):
            await self.put_files(execution, service, box)
            execution.interrupt = box.cancel
            execution.begin()
            begun = time.monotonic()
            for code in given.cells:
                left = given.total_timeout - (time.monotonic() - begun)
                result = await box.execute(code, timeout_ms=max(left * 1000, 1))
                if result.kind == "timeout":
                    answer.status, answer.cells = "Failed", []
                    answer.driver = Ran.of_program(result)
                    break
                answer.cells.append(_cell(result))
            else:
                spent = time.monotonic() - begun
                answer.driver = Ran(execution_time=spent, return_code=0)
                answer.files = await self.fetch(execution, box, given.fetch_files)
            await service.cpu.charge(meter)
            if meter.stopped is not None:
                raise meter.stopped
            service.quotas.executed(execution.principal)
            return answer


def _cell(result: SandboxResult) -> wire.CellAnswer:
    """Return a cell's result as a notebook shows it."""
    printed, ended = Printed(), CellResult.of(result)
    stderr = printed.hear("stderr", result.stderr)
    shown = [content["data"] for _, content in ended.messages(1)]
    if result.success:
        return wire.CellAnswer(stdout=result.stdout, stderr=stderr + printed.trace, display=shown)
    error = [ended.failure(printed.trace)]
    return wire.CellAnswer(stdout=result.stdout, stderr=stderr, display=shown, error=error)


def _judged(answer: RunAnswer) -> RunAnswer:
    """Set the status by how the steps ended."""
    steps = [step for step in (answer.compile_result, answer.run_result) if step is not None]
    if not all(step.is_good for step in steps):
        answer.status = "Failed"
    return answer


def _config(
    call: ApiRequest,
    given: wire.RunCode | wire.RunJupyter,
    image: str | None = None,
    tier: str | None = None,
) -> SandboxConfig:
    """Return the configuration of a sandbox; limits that the key may not have are lowered."""
    quota, service = call.principal.quota, call.service
    memory = quota.memory_bytes
    if given.memory_limit > 0:
        asked = max(given.memory_limit * MIB, LEAST_MEMORY)
        memory = asked if memory is None else min(asked, memory)
    most = min(OUTPUT_BYTES, service.settings.max_output_bytes)
    policy = bodies.Policy(
        memory_bytes=memory, stdout_max_bytes=most, stderr_max_bytes=most, folders=given.folders()
    )
    options = bodies.Options(policy=policy, template=tier)
    config = bodies.plain_config(options, quota, service.settings.max_output_bytes)
    return config if image is None else dataclasses.replace(config, image=image)


def _image(call: ApiRequest, language: str) -> str | None:
    """Return the image that the operator has named for a language."""
    named = dict(entry.split("=", 1) for entry in call.service.settings.language_images)
    return named.get(language)


def _tier(given: wire.RunCode) -> str | None:
    return None if given.language in PYTHON else PLAIN


async def _files(call: ApiRequest, given: wire.Files) -> list[tuple[str, bytes]]:
    if not given.files:
        return []
    call.held.grow(given.size)
    return await asyncio.to_thread(given.decoded)


def _patience(given: wire.RunCode, language: Language) -> float:
    """Return how long a client may be kept waiting for its turn.

    One that names a time to compile gives up 10 s after both times, and no time goes to compiling
    what is not compiled. One that does not gives up 2 s after the time to run.
    """
    if given.compile_timeout is UNSET:
        return LEAST_PATIENCE
    return PATIENCE + (0.0 if language.compile else max(given.compile_timeout, 0.0))


def _now() -> float:
    return asyncio.get_running_loop().time()
