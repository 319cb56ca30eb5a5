"""create_sandbox, blocking and async: choose the backend, make the sandbox, start it."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import os
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict, TypeVar, Unpack

from atoll.backends import registry
from atoll.config import PRELOADS, SandboxConfig
from atoll.errors import ConfigError
from atoll.policy import ExecutionPolicy, check_keys

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from os import PathLike

    from atoll.config import Handler, LineCallback, OutputCallback
    from atoll.log import SandboxLogger
    from atoll.network import NetworkPolicy
    from atoll.policy import Capability, Isolation
    from atoll.sandbox.base import BaseSandbox
    from atoll.sandbox.blocking import SyncSandbox

# What a sandbox is made of is imported when one is opened: a program that imports Atoll to use it
# later starts in half the time.
# ruff: noqa: PLC0415
ConfigT = TypeVar("ConfigT", bound=SandboxConfig)
SERVED = frozenset({"daemon", "remote", "ray"})
"""Backends whose sandboxes are in another process, which checks what it is asked for itself."""


class SandboxOptions(TypedDict, total=False):
    """The fields of SandboxConfig, as keyword arguments."""

    backend: str
    url: str | None
    api_key: str | None
    context: Any
    state: bytes | None
    max_state_bytes: int
    min_isolation: Isolation | str | None
    timeout_ms: float
    max_output_length: int
    policy: ExecutionPolicy | Mapping[str, Any]
    python: str | None
    preload: str | None
    packages: Sequence[str]
    allow_source: bool
    image: str | None
    writable_root: bool
    user: str | None
    workdir: str | None
    entrypoint: bool
    wasm_binary_path: PathLike[str] | str | None
    inject_setup: bool
    index_url: str | Sequence[str] | None
    use_worker: bool
    workspace: PathLike[str] | str | None
    on_stdout: LineCallback | None
    on_stderr: LineCallback | None
    on_output: OutputCallback | None
    on_stdin: Handler | None
    argv: Sequence[str] | None
    on_llm_query: Handler | None
    on_rlm_query: Handler | None
    tools: Mapping[str, Handler] | Sequence[Handler]
    max_concurrency: int
    logger: SandboxLogger
    lazy_queries: bool
    network: NetworkPolicy | Mapping[str, Any] | Sequence[str] | None
    guard: str | None
    timeout_seconds: float | None
    explored_length: int | None
    durability: str
    auto_recover: bool


def create_sandbox(
    config: SandboxConfig | None = None, **options: Unpack[SandboxOptions]
) -> SyncSandbox:
    """Start a sandbox for blocking code. Use it in a `with` block, or call destroy().

    `options` are fields of SandboxConfig; they override those of `config`.
    """
    from atoll.concurrency.portal import Portal
    from atoll.sandbox.blocking import SyncSandbox
    from atoll.sandbox.context import warn_of_path

    settings: SandboxConfig = merge(config, options)
    warn_of_path(settings.context)
    return SyncSandbox(Portal.shared().run(open_sandbox(settings)))


OPEN_IT = "write `async with atoll.aio.create_sandbox(...) as box`, or await it first"


class Opening:
    """A sandbox that is not started yet: `await` it, or use it in `async with`."""

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config
        self._box: BaseSandbox | None = None

    def __await__(self) -> Generator[Any, None, BaseSandbox]:
        return open_sandbox(self._config).__await__()

    if not TYPE_CHECKING:  # a type checker would take any name for one that exists

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"the sandbox is not open yet, so it has no {name!r}: {OPEN_IT}")

        def __enter__(self) -> NoReturn:
            raise TypeError(f"this is a sandbox for async code: {OPEN_IT}")

        def __exit__(self, *_exc: object) -> NoReturn:
            raise TypeError(OPEN_IT)

    async def __aenter__(self) -> BaseSandbox:
        self._box = await self
        return self._box

    async def __aexit__(self, *_exc: object) -> None:
        if self._box is not None:
            await self._box.destroy()


async def open_sandbox(
    config: SandboxConfig, needed: frozenset[Capability] = frozenset()
) -> BaseSandbox:
    """Choose the backend, make the sandbox and start it; a failed start leaves nothing behind."""
    for mount in config.policy.mounts:
        if not os.path.lexists(mount.source):  # noqa: ASYNC240 - one system call
            raise ConfigError(
                f"cannot mount {str(mount.source)!r} at {mount.target}: there is no such file or "
                f"folder on this machine"
            )
    if config.durability != "none" and config.backend != "ray":
        raise ConfigError(
            f"durability={config.durability!r} needs a fleet: set backend='ray'. Elsewhere, save()"
        )
    sandbox_class = await registry.choose(config, needed)
    served = sandbox_class.backend in SERVED
    if config.preload is not None and not served and config.preload not in PRELOADS:
        raise ConfigError(f"no tier {config.preload!r} to preload: there are {', '.join(PRELOADS)}")
    box = sandbox_class(config)
    try:
        await box.initialize(config.context)
    except BaseException:
        await box.destroy()
        raise
    return box


def merge(
    config: SandboxConfig | None,
    options: Mapping[str, Any],
    kind: type[ConfigT] = SandboxConfig,  # type: ignore[assignment]
) -> ConfigT:
    """Return `config` with the options; ConfigError for an unknown one names the closest."""
    known = _names(kind)  # type: ignore[arg-type]  # a class has a hash
    if not known.issuperset(options):
        _refuse_unknown(options, known)
    if options.get("timeout_ms") is not None and options.get("timeout_seconds") is not None:
        raise ConfigError("timeout_ms and timeout_seconds are the same limit: give one of them")
    given = dict(options)
    if "tools" in given:
        from atoll.sandbox.tools import by_name

        given["tools"] = by_name(given["tools"])
    if config is None:
        return kind(**given)
    if not isinstance(config, SandboxConfig):
        raise ConfigError(
            f"not an atoll.{kind.__name__}: {config!r:.60}. Write options by name, such as "
            f"backend='native' or context=..., or give an atoll.{kind.__name__}"
        )
    if not isinstance(config, kind):  # a sandbox's own: the rest has its defaults
        fields = dataclasses.fields(SandboxConfig)
        config = kind(**{field.name: getattr(config, field.name) for field in fields})
    return dataclasses.replace(config, **given) if given else config


@functools.cache
def _names(kind: type[Any]) -> frozenset[str]:
    """Return the names of a configuration's options."""
    return frozenset(field.name for field in dataclasses.fields(kind)) | {"timeout_seconds"}


def _refuse_unknown(options: Mapping[str, Any], known: frozenset[str]) -> NoReturn:
    """Raise ConfigError for the first unknown option; a limit is a field of the policy."""
    limits = {field.name for field in dataclasses.fields(ExecutionPolicy)} - known
    name = next(name for name in options if name not in known)
    if name in limits:
        raise ConfigError(f"{name!r} is a part of the policy: write policy={{{name!r}: ...}}")
    close = difflib.get_close_matches(name, sorted(known | limits), 1)
    if close and close[0] in limits:
        raise ConfigError(f"unknown option {name!r}: write policy={{{close[0]!r}: ...}}")
    check_keys("option", [name], known)
    raise AssertionError(name)
