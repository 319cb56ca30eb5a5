"""How long a model is waited for, how often it is asked again, how much it may say."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.errors import ConfigError
from atoll.policy import MIB, check_positive

DEFAULT_TIMEOUT_SECONDS = 600.0
DEFAULT_RETRIES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one call may take."""

    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """A call with all its retries."""
    idle_seconds: float = 300.0
    """Silence in a stream: a model may think for minutes. An answer that is not streamed comes
    after one long silence, which only `timeout_seconds` ends."""
    connect_seconds: float = 10.0
    max_retries: int = DEFAULT_RETRIES
    max_retry_wait_seconds: float = 60.0
    """The longest that a server's Retry-After is heeded."""
    max_bytes: int = 64 * MIB
    """An answer, as it comes over the wire."""
    max_event_bytes: int = MIB
    """One event of a streamed answer."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if name != "max_retries":
                check_positive(name, getattr(self, name))
        if self.max_retries < 0:
            raise ConfigError(f"max_retries must be 0 or more, not {self.max_retries}")
