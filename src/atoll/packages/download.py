"""Downloads wheels: runs pip as a confined process, and explains why it failed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.concurrency import boot
from atoll.egress import certificates
from atoll.errors import ConfigError, PackageError
from atoll.packages import index_settings, written
from atoll.packages.confined import ALLOWED, UNCONFINED
from atoll.packages.progress import Progress
from atoll.packages.target import find_pip
from atoll.text.requirements import canonical

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from atoll.packages.target import Target

DOWNLOAD_SECONDS = 1800
MAX_TEXT = 400
_BOOT = boot.code("atoll.packages.confined")
_OPTIONS = (
    "--disable-pip-version-check --no-input --no-color --progress-bar=off --no-cache-dir "
    "--only-binary=:all:"
)
_MISSING = re.compile(r"No matching distribution found for ([A-Za-z0-9._-]+)")
_VERSIONS = re.compile(r"satisfies the requirement \S.*?\(from versions: (.*?)\)", re.DOTALL)
_NEEDED_BY = re.compile(r"satisfies the requirement .*?\(from ([A-Za-z0-9._-]+)\)")
_OTHER_PYTHON = "require a different python version"
_UNREACHABLE = ("Retrying (Retry", "Could not fetch URL", "Max retries exceeded", "Network is")
_REFUSED = re.compile(r"(401|403|407) Client Error: (.+?)(?: for url|$)")
_PAGE = re.compile(r"Could not fetch URL \S+: ((?:401|403|407) .+?) - skipping")
_MAX_LOG = 64 << 20
_NO_FILE = re.compile(r"HTTP error (\d+)[^\n]*?/([A-Za-z0-9._]+)-[^/\n]*?\.(?:whl|tar\.gz|zip)")
_PLAIN_HTTP = re.compile(r"The repository located at (\S+) is not a trusted")
_NO_PLACE = re.compile(r"Location '([^']+?)/?(?:[^/']+/)?' is ignored")
_CAUSE = re.compile(r"\[Errno -?\d+\] [^'\")]+|(?:Read|Connection) timed out|Tunnel [^'\")]+")
_CONFLICT = re.compile(r"Cannot install (.+?) because these package versions have conflict")
_HASH = re.compile(r"(?:^ +([A-Za-z0-9._-]+).*\n)? *Expected sha256", re.MULTILINE)
_SEARCHED = re.compile(r"satisfies the requirement (.+?) \(from ")
_FULL = ("No space left on device", "Disk quota exceeded")


@dataclass(frozen=True, slots=True)
class Finished:
    """The output and exit code of the downloader."""

    code: int
    text: str
    offline: bool


def wheels(
    requirements: Sequence[str], target: Target, scratch: Path, progress: Progress, *, links: str
) -> list[Path]:
    """Download wheels of the requirements and their dependencies into `scratch`/wheels.

    `links` is a folder of wheels that were built here, or empty.
    """
    result = _folder(scratch)
    asked = [*target.flags, *([f"--find-links={links}"] if links else []), "--", *requirements]
    _run(target, scratch, ["--dest", str(result), *asked], progress, [links] if links else [])
    return sorted(result.glob("*.whl"))


def by_hand(names: Sequence[str], target: Target, scratch: Path) -> list[Path]:
    """Download wheels that a user has named on the command line; a name may be that of a file."""
    if option := next((name for name in names if name.startswith("-")), None):
        raise ConfigError(f"{option!r} is not a package name")
    result, files = _folder(scratch), [os.path.abspath(name) for name in names if _is_file(name)]
    asked = [os.path.abspath(name) if _is_file(name) else name for name in names]
    with Progress(f"atoll: packages {', '.join(names)[:60]}") as progress:
        arguments = ["--dest", str(result), *target.flags, "--", *asked]
        _run(target, scratch, arguments, progress, files)
    return sorted(result.glob("*.whl"))


def _is_file(name: str) -> bool:
    return name.endswith(".whl") and os.path.isfile(name)


def pinned(pins: Sequence[str], target: Target, scratch: Path, progress: Progress) -> list[Path]:
    """Download exactly these wheels: each pin is `name==version --hash=sha256:...`."""
    result, lock = _folder(scratch), scratch / "lock.txt"
    lock.write_text("\n".join(pins) + "\n", encoding="utf-8")
    options = ["--require-hashes", "--no-deps", "-r", str(lock)]
    _run(target, scratch, ["--dest", str(result), *target.flags, *options], progress, [])
    return sorted(result.glob("*.whl"))


def _folder(scratch: Path) -> Path:
    result = scratch / "wheels"
    result.mkdir(exist_ok=True)
    return result


def _run(
    target: Target, scratch: Path, arguments: list[str], progress: Progress, more: list[str]
) -> None:
    log = scratch / "pip.log"
    options = (*_OPTIONS.split(), "--log", str(log))
    command = [*find_pip(target.interpreter), "download", *options, *arguments]
    said = confined(command, target, scratch, progress, more)
    if said.code != 0:
        raise explain(_refusals(log) + said.text, target, offline=said.offline)


def _refusals(log: Path) -> str:
    """Return the lines of pip's log about refused index pages, which pip does not print."""
    try:
        with written.open_file(log.parent, log.name) as file:
            text = file.read(_MAX_LOG).decode(errors="replace")
    except PackageError:
        return ""
    return "".join(f"{line}\n" for line in _PAGE.findall(text)[:5])


def confined(
    command: list[str], target: Target, scratch: Path, progress: Progress, more: Sequence[str] = ()
) -> Finished:
    """Run a command that has a network and may write to `scratch` only.

    It blocks in this thread, so that PR_SET_PDEATHSIG ends the command with it.
    """
    variables = index_settings.environment()
    python = target.interpreter
    program = {os.path.dirname(command[0]), os.path.dirname(os.path.realpath(command[0]))}
    readable = [*python.folders, *python.links, *program, boot.ROOT, *more]
    readable += index_settings.readable_paths(variables)
    facts = json.dumps([os.getpid(), str(scratch), readable, command])
    own = {"TMPDIR": str(scratch), "UV_CACHE_DIR": str(scratch / "uv"), "UV_TOOL_DIR": str(scratch)}
    said: list[str] = []
    with (
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BOOT, boot.ROOT, facts],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**variables, **own},
            text=True,
            errors="replace",
        ) as process,
        progress.watchdog(DOWNLOAD_SECONDS, process.kill),
    ):
        assert process.stdout is not None
        for line in process.stdout:
            said = [*said[-200:], line]
            if line.startswith(("Collecting ", "  Downloading ", "Processing ")):
                progress.say(line.strip().partition(" (from")[0].lower()[:100])
        code = process.wait()
    return Finished(code, "".join(said), index_settings.is_offline(variables))


def explain(said: str, target: Target, *, offline: bool) -> PackageError:  # noqa: PLR0911 - a table
    """Return the error for pip's output: which package is the cause, and what to do."""
    if any(sign in said for sign in _FULL):
        return disk_full("")
    if UNCONFINED in said:
        hint = f"If you trust the index, set {ALLOWED}=1: pip then runs unconfined, as you."
        return PackageError("", _tail(said), hint)
    missing = _MISSING.search(said)
    package = canonical(missing[1]) if missing else ""
    if certificates.is_refusal(said):
        return PackageError(package, certificates.ADVICE)
    if match := _REFUSED.search(said):
        return PackageError(package, f"the index refuses: {match[0]}", "Check its credentials.")
    if any(sign in said for sign in _UNREACHABLE):
        hint = "Check the network and PIP_INDEX_URL, or use PIP_FIND_LINKS with PIP_NO_INDEX=1."
        return PackageError(package, f"the index cannot be reached: {_last_warning(said)}", hint)
    if match := _NO_FILE.search(said):
        reason = f"the index names a file that it does not give: HTTP {match[1]}"
        return PackageError(canonical(match[2]), reason)
    if match := _CONFLICT.search(said):
        return PackageError("", f"{match[1]} need versions that contradict: {_conflict(said)}")
    if match := _HASH.search(said):
        reason = "its file has changed: it is not the one that was resolved before, or not the one "
        return PackageError(canonical(match[1] or ""), reason + "whose hash the index gives")
    if missing:
        return _no_version(said, package, target, offline=offline)
    return PackageError("", _tail(said) or "pip failed without any output")


def disk_full(where: str) -> PackageError:
    """Return the error for a full disk."""
    place = f" of {where}" if where else ""
    hint = "Free some, type `atoll env list` and `atoll env remove`, or set ATOLL_CACHE."
    return PackageError("", f"the disk{place} is full", hint)


def _no_version(said: str, package: str, target: Target, *, offline: bool) -> PackageError:
    needed = _NEEDED_BY.search(said)
    of = f" (needed by {canonical(needed[1])})" if needed and needed[1] != "versions" else ""
    versions = _VERSIONS.search(said)
    known = [version.strip() for version in versions[1].split(",")] if versions else []
    if known and known != ["none"]:
        newest = ", ".join(known[-5:])
        return PackageError(package, f"no such version{of}", f"The newest are {newest}.")
    if _OTHER_PYTHON in said:
        return PackageError(package, f"no version{of} is for {target.label}", "Ask for an older.")
    if offline:
        reason = f"no wheel{of} in PIP_FIND_LINKS, and the index is off (offline)"
        hint = "Unset PIP_NO_INDEX or UV_OFFLINE to ask the index."
    elif ignored := _PLAIN_HTTP.search(said):
        reason = f"the index at {ignored[1]} is plain http, which pip does not trust"
        hint = "Use https, or set PIP_TRUSTED_HOST to its name."
    elif (ignored := _NO_PLACE.search(said)) and not index_settings.is_folder(ignored[1]):
        reason = f"there is no index at {ignored[1]!r}, which is neither a URL nor a folder"
        hint = "Check PIP_INDEX_URL and PIP_FIND_LINKS."
    else:
        reason = f"no wheel{of} for {target.label} in the index"
        hint = "Check the spelling; for a source only, pass allow_source=True (--allow-source)."
    searched = _SEARCHED.search(said)
    return PackageError(package, reason, hint, no_wheel_of=searched[1] if searched else package)


def _conflict(said: str) -> str:
    _, _, rest = said.partition("The conflict is caused by:")
    lines = [line.strip() for line in rest.splitlines()[1:5]]
    return "; ".join(line for line in lines if line)[:MAX_TEXT]


def _last_warning(said: str) -> str:
    result = [line for line in said.splitlines() if any(sign in line for sign in _UNREACHABLE)]
    cause = _CAUSE.search(result[-1])
    return (cause[0] if cause else result[-1].removeprefix("WARNING: ")).strip()[:200]


def _tail(said: str) -> str:
    if "Traceback (most recent call last)" in said:
        return f"pip failed: {said.strip().splitlines()[-1]}"[:MAX_TEXT]
    lines = [line.removeprefix("ERROR: ") for line in said.splitlines() if "ERROR" in line]
    return " ".join(lines or said.splitlines()[-3:])[-MAX_TEXT:]
