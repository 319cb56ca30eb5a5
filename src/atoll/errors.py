"""Every error that Atoll raises on the host. A failure of guest code is a result, not an error.

AtollError
├── ConfigError                 a bad argument (also a ValueError)
│   ├── UnknownBackendError     unknown backend name
│   └── LimitUnsupportedError   the backend cannot enforce this limit here
├── ArchiveError                an archive or PDF that cannot be read
│   └── ArchiveLimitError       it exceeds one of ArchiveLimits
├── WebError                    a page that cannot be fetched
│   └── WebRefusedError         the policy forbids fetching it
├── BackendUnavailableError     the backend cannot run here
│   └── IsolationError          it can, but with weaker isolation than asked for
├── PackageError                packages by name that cannot be installed
├── ImageError                  a container image that cannot be pulled, unpacked, built or pushed
├── RetrievalError              an index that cannot be built, written or queried
│   └── IndexDamagedError       its file is damaged; it is rebuilt automatically
├── MemoryStoreError            the file of an episodic memory cannot be read or written
├── FleetError                  a fleet, or the object store of its sessions, cannot be used
├── ModelError                  a language model gave no answer
│   ├── ModelUnavailableError   unreachable or overloaded after all retries (retryable)
│   ├── ModelRefusedError       the server rejects the request: bad key, bad request
│   ├── ModelTimeoutError       no answer in time
│   ├── ModelReplyError         the answer is malformed, cut off or too large
│   └── ModelRecordError        a script or recording has no answer, or cannot be written
│       └── RecordUnreadableError   the recording cannot be read (also a ConfigError)
└── SandboxError                the sandbox itself failed
    ├── SandboxStartError       it could not be started
    ├── SandboxClosedError      it has been destroyed
    ├── SandboxLostError        its process was killed from outside (mostly retryable)
    ├── BusyError               the queue is full (retryable)
    ├── UnsupportedError        the backend lacks this capability
    ├── PortError               a port of the guest cannot be reached
    ├── StateError              a saved state that cannot be made, read or trusted
    │   └── StateTooLargeError  it is larger than a limit
    ├── ExecutionTimeoutError   an execution was ended at its deadline (one-shot interfaces)
    └── VariableError           a variable cannot be read or set

If `retryable` is true, nothing was left half done: the same call may be repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class AtollError(Exception):
    """Base class of all errors that Atoll raises."""

    retryable: bool = False


class ConfigError(AtollError, ValueError):
    """An argument is invalid."""


class UnknownBackendError(ConfigError):
    """The backend's name is not registered."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.known = tuple(known)
        names = ", ".join(repr(backend) for backend in ("auto", *self.known))
        super().__init__(f"unknown backend {name!r}: use one of {names}")


class LimitUnsupportedError(ConfigError):
    """The backend cannot enforce a limit of the policy on this host."""

    def __init__(self, backend: str, limit: str, hint: str) -> None:
        self.backend, self.limit, self.hint = backend, limit, hint
        super().__init__(f"backend {backend!r} cannot enforce {limit} here: {hint}")


class ArchiveError(AtollError):
    """An archive or PDF that cannot be read."""


class ArchiveLimitError(ArchiveError):
    """An archive exceeds the field `limit` of ArchiveLimits: `value` is over `most`."""

    def __init__(self, limit: str, *, most: float, what: str, value: float | None = None) -> None:
        self.limit, self.value, self.most, self.what = limit, value, most, what
        there_is = f"is {value}, more than" if value is not None else "is more than"
        super().__init__(f"{what} {there_is} {limit}={most}: raise it if the file is trusted")


class WebError(AtollError):
    """A page cannot be fetched: network failure, server error, or unusable content."""


class WebRefusedError(WebError):
    """The policy forbids fetching this page."""


class BackendUnavailableError(AtollError):
    """The backend cannot run on this host: `reason`, and `hint` what to do."""

    def __init__(self, backend: str, reason: str, hint: str = "") -> None:
        self.backend, self.reason, self.hint = backend, reason, hint
        super().__init__(f"backend {backend!r} cannot run here: {reason}{_with_hint(hint)}")


class ComponentMissingError(AtollError, FileNotFoundError):
    """The WebAssembly component file does not exist."""


class IsolationError(BackendUnavailableError):
    """The isolation level that was asked for is not available here."""


class PackageError(AtollError):
    """Packages cannot be installed: `package` (if one is to blame), `reason`, what to do."""

    def __init__(self, package: str, reason: str, hint: str = "", *, no_wheel_of: str = "") -> None:
        self.package, self.reason, self.hint = package, reason, hint
        self.no_wheel_of = no_wheel_of
        """The requirement for which an index has no wheel: a source may be there."""
        what = (
            f"the package {package!r} cannot be installed"
            if package
            else "packages cannot be installed"
        )
        super().__init__(f"{what}: {reason}{_with_hint(hint)}")


class ImageError(AtollError):
    """A container image cannot be used: `image`, `reason`, and `hint` what to do."""

    def __init__(self, image: str, reason: str, hint: str = "") -> None:
        self.image, self.reason, self.hint = image, reason, hint
        what = f"the image {image!r} cannot be used" if image else "images cannot be used"
        super().__init__(f"{what}: {reason}{_with_hint(hint)}")


class RetrievalError(AtollError):
    """The index of code_search or doc_search cannot be built, written or queried."""


class IndexDamagedError(RetrievalError):
    """The index file is damaged, or written by another version."""


class SandboxError(AtollError):
    """The sandbox itself failed, not the code in it."""


class SandboxStartError(SandboxError):
    """The sandbox could not be started: `step` failed because of `reason`."""

    def __init__(self, step: str, reason: str) -> None:
        self.step, self.reason = step, reason
        super().__init__(f"the sandbox could not be started: {step}: {reason}")


class ProcessError(SandboxError):
    """A process beside the cells could not be started, is not known, or takes no input."""


class SandboxClosedError(SandboxError):
    """A method was called on a sandbox that is closed."""

    def __init__(self, what: str = "the sandbox has been destroyed") -> None:
        super().__init__(what)


class SandboxLostError(SandboxError):
    """The sandbox's process was killed from outside; its state is lost.

    A call that no repetition can mend, because the session has ended for good, is not `retryable`.
    """

    retryable = True

    def __init__(self, what: str = "", *, retryable: bool = True) -> None:
        super().__init__(what)
        if not retryable:
            self.retryable = False


class BusyError(SandboxError):
    """The queue is full; nothing was started."""

    retryable = True


_IN_WORDS = {
    "fork": "clone a live session",
    "host-folder": "show folders of the host",
    "images": "run container images",
    "interpreter": "use another interpreter",
    "network": "reach hosts by a network policy",
    "packages": "have packages by name",
    "ports": "reach servers in the guest",
    "previews": "show servers in the guest to browsers",
    "save": "save a session",
    "processes": "start processes",
    "shell": "run shell commands",
    "workspace": "give access to its files",
}
_BACKENDS_THAT_CAN = {
    "fork": "Use backend='daemon' (atoll daemon start).",
    "processes": "Use backend='native' or 'daemon'.",
    "shell": "Use backend='native' or 'daemon'.",
    "packages": "Use backend='native' or 'daemon'.",
    "images": "Use backend='native', 'daemon' or 'gvisor'.",
    "ports": "Use backend='native', 'daemon' or 'gvisor'.",
    "previews": "Use port() for this machine, or backend='remote' (atoll serve --preview-port).",
}


def in_words(capability: str) -> str:
    """Return what a backend with a capability can do, to go after "can" or "cannot"."""
    return _IN_WORDS.get(capability, capability)


class UnsupportedError(SandboxError):
    """The backend does not declare this capability."""

    def __init__(self, backend: str, capability: str) -> None:
        self.backend, self.capability = backend, capability
        hint = _BACKENDS_THAT_CAN.get(capability, "")
        super().__init__(f"backend {backend!r} cannot {in_words(capability)}{_with_hint(hint)}")


class PortError(SandboxError):
    """A TCP port of the guest cannot be reached: `port`, and `reason`."""

    def __init__(self, port: int, reason: str) -> None:
        self.port, self.reason = port, reason
        super().__init__(f"port {port} of the sandbox cannot be reached: {reason}")


class StateError(SandboxError):
    """A saved state cannot be made, read or trusted. The session's own state is unchanged."""


class StateTooLargeError(StateError):
    """A state has more than `limit` bytes; it has `size`, if that is known."""

    def __init__(self, message: str, *, limit: int, size: int | None = None) -> None:
        self.limit, self.size = limit, size
        super().__init__(message)


class ExecutionTimeoutError(SandboxError):
    """An execution was ended at its deadline; `stdout` and `stderr` hold its output so far."""

    def __init__(self, message: str, *, stdout: str = "", stderr: str = "") -> None:
        self.stdout, self.stderr = stdout, stderr
        super().__init__(message)


class VariableError(SandboxError):
    """A guest variable cannot be read or set; the message says what to do instead."""

    def __init__(self, name: str, reason: str, verb: str = "read") -> None:
        self.name, self.reason = name, reason
        super().__init__(f"variable {name!r} cannot be {verb}: {reason}")


class MemoryStoreError(AtollError):
    """The file of an episodic memory is damaged, locked, full, or not one."""


class FleetError(AtollError):
    """A fleet, or the object store that keeps its sessions, cannot be used: why, what to do."""


class ModelError(AtollError):
    """A language model gave no answer. The message never contains a key or a prompt."""


class ModelUnavailableError(ModelError):
    """The server was unreachable or overloaded, after all retries."""

    retryable = True


class ModelRefusedError(ModelError):
    """The server rejects the request; repeating it would not help."""

    def __init__(self, message: str, *, status: int | None = None, code: str = "") -> None:
        self.status, self.code = status, code
        super().__init__(message)


class ModelTimeoutError(ModelError):
    """The model did not answer in time."""


class ModelReplyError(ModelError):
    """The answer is unusable; `received` characters of it were already passed on."""

    def __init__(self, message: str, *, received: int = 0) -> None:
        self.received = received
        super().__init__(message)


class ModelRecordError(ModelError):
    """A script or recording has no answer to a request, or cannot be written."""


class RecordUnreadableError(ModelRecordError, ConfigError):
    """A record that does not exist or cannot be read: nothing was asked of a model."""


def _with_hint(hint: str) -> str:
    return f". {hint}" if hint else ""
