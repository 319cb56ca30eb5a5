"""Every error that Atoll raises on the host. Faults of guest code are results, not errors.

AtollError
├── ConfigError                 a bad argument (also a ValueError)
│   ├── UnknownBackendError     no backend of that name
│   └── LimitUnsupportedError   a limit that the backend cannot enforce here
├── ArchiveError                an archive or PDF that cannot be read
│   └── ArchiveLimitError       it hits one of ArchiveLimits
├── WebError                    a page that cannot be had
│   └── WebRefusedError         it must not be: the policy refuses it
├── BackendUnavailableError     the backend cannot run here
│   └── IsolationError          it can, but not as strongly as asked
├── RetrievalError              an index that cannot be made, written or asked
│   └── IndexDamagedError       its file is damaged; it is made anew, and few ever see this
├── ModelError                  a language model that gave no answer
│   ├── ModelUnavailableError   not reached, or overloaded, after all retries (retryable)
│   ├── ModelRefusedError       it will not: no valid key, a request it does not take
│   ├── ModelTimeoutError       no answer in time
│   ├── ModelReplyError         an answer that is broken, cut short or too large
│   └── ModelRecordError        a script or record that has no answer, or cannot be kept
│       └── RecordUnreadableError   a record that cannot be read (also a ConfigError)
└── SandboxError                a sandbox failed as such
    ├── SandboxStartError       it could not be started
    ├── SandboxClosedError      it has been destroyed
    ├── SandboxLostError        what it ran in was killed from outside (retryable)
    ├── BusyError               too much is waiting already (retryable)
    ├── UnsupportedError        the backend has no such power
    ├── StateError              a saved state that cannot be made, read or trusted
    ├── ExecutionTimeoutError   an execution was ended at its deadline (one-shot interfaces)
    └── VariableError           a variable's value cannot be handed over

An error whose `retryable` is true left nothing half done: the same call may be made again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable


class AtollError(Exception):
    """Any error of Atoll's own."""

    retryable: ClassVar[bool] = False


class ConfigError(AtollError, ValueError):
    """An argument that cannot be."""


class UnknownBackendError(ConfigError):
    """A backend's name that is in no table."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.known = tuple(known)
        names = ", ".join(repr(one) for one in ("auto", *self.known))
        super().__init__(f"unknown backend {name!r}: use one of {names}")


class LimitUnsupportedError(ConfigError):
    """A limit of the policy that the backend cannot enforce on this host."""

    def __init__(self, backend: str, limit: str, hint: str) -> None:
        self.backend, self.limit, self.hint = backend, limit, hint
        super().__init__(f"backend {backend!r} cannot enforce {limit} here: {hint}")


class ArchiveError(AtollError):
    """An archive or PDF that cannot be read."""


class ArchiveLimitError(ArchiveError):
    """An archive that hits a limit: its name in ArchiveLimits, what there is, what may be."""

    def __init__(self, limit: str, *, most: float, what: str, value: float | None = None) -> None:
        self.limit, self.value, self.most, self.what = limit, value, most, what
        there_is = f"is {value}, more than" if value is not None else "is more than"
        super().__init__(f"{what} {there_is} {limit}={most}: raise it if the file is trusted")


class WebError(AtollError):
    """A page that cannot be had: the network, the server, or what it sends."""


class WebRefusedError(WebError):
    """A page that must not be had: the policy refuses it."""


class BackendUnavailableError(AtollError):
    """A backend that cannot run on this host."""

    def __init__(self, backend: str, reason: str, hint: str = "") -> None:
        self.backend, self.reason, self.hint = backend, reason, hint
        super().__init__(f"backend {backend!r} cannot run here: {reason}{_with_hint(hint)}")


class ComponentMissingError(AtollError, FileNotFoundError):
    """There is no WebAssembly component where one was said to be."""


class IsolationError(BackendUnavailableError):
    """Isolation that was asked for and is not to be had."""


class RetrievalError(AtollError):
    """An index for code_search and doc_search that cannot be made, written or asked."""


class IndexDamagedError(RetrievalError):
    """An index whose file is damaged, or of another version."""


class SandboxError(AtollError):
    """A sandbox that failed as such, not the code in it."""


class SandboxStartError(SandboxError):
    """A sandbox that could not be started: the step that failed, and why."""

    def __init__(self, step: str, reason: str) -> None:
        self.step, self.reason = step, reason
        super().__init__(f"the sandbox could not be started: {step}: {reason}")


class SandboxClosedError(SandboxError):
    """A call on a sandbox that is not open."""

    def __init__(self, what: str = "the sandbox has been destroyed") -> None:
        super().__init__(what)


class SandboxLostError(SandboxError):
    """The process that held the sandbox was killed from outside; what ran in it is lost."""

    retryable = True


class BusyError(SandboxError):
    """The queue is full: nothing was started."""

    retryable = True


_IN_WORDS = {"shell": "run shell commands"}
_BACKENDS_THAT_CAN = {
    "fork": "Use backend='daemon' (atoll daemon start).",
    "shell": "Use backend='native' or 'daemon'.",
}


class UnsupportedError(SandboxError):
    """A power that the backend does not declare."""

    def __init__(self, backend: str, capability: str) -> None:
        self.backend, self.capability = backend, capability
        hint = _BACKENDS_THAT_CAN.get(capability, "")
        what = _IN_WORDS.get(capability, capability)
        super().__init__(f"backend {backend!r} cannot {what}{_with_hint(hint)}")


class StateError(SandboxError):
    """A saved state that cannot be made, read or trusted. The session's own state is untouched."""


class ExecutionTimeoutError(SandboxError):
    """An execution that was ended at its deadline, with what it had printed until then."""

    def __init__(self, message: str, *, stdout: str = "", stderr: str = "") -> None:
        self.stdout, self.stderr = stdout, stderr
        super().__init__(message)


class VariableError(SandboxError):
    """A guest variable whose value cannot be handed over."""

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason
        super().__init__(f"variable {name!r} cannot be read: {reason}")


class ModelError(AtollError):
    """A language model that gave no answer. No key and no prompt is ever in the message."""


class ModelUnavailableError(ModelError):
    """A server that was not reached or had no room, however often it was asked."""

    retryable = True


class ModelRefusedError(ModelError):
    """A request that the server does not take: what is wrong stays wrong."""

    def __init__(self, message: str, *, status: int | None = None, code: str = "") -> None:
        self.status, self.code = status, code
        super().__init__(message)


class ModelTimeoutError(ModelError):
    """No answer within the time that was given."""


class ModelReplyError(ModelError):
    """An answer that cannot be used; `received` characters of it had been handed on."""

    def __init__(self, message: str, *, received: int = 0) -> None:
        self.received = received
        super().__init__(message)


class ModelRecordError(ModelError):
    """A script or a record that has no answer to a request, or that cannot be kept."""


class RecordUnreadableError(ModelRecordError, ConfigError):
    """A record that does not exist or cannot be read: nothing was asked of a model."""


def _with_hint(hint: str) -> str:
    return f". {hint}" if hint else ""
