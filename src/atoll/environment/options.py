"""What an environment is given beside its sandbox's configuration."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.context import Context, from_path, share_text
from atoll.explore.index import ContextIndex
from atoll.factory import Options, merge

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from atoll.config import REPLConfig
    from atoll.web import WebPolicy

Worker = Callable[[str], str | Awaitable[str]]


class EnvironmentOptions(Options, total=False):
    """The fields of REPLConfig and of EnvironmentConfig, as keyword arguments."""

    documents: PathLike[str] | str | None
    worker: Worker | None
    web: WebPolicy | None
    search_server: str | None
    submit_fields: Mapping[str, type] | None
    session_id: str | None
    redact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentConfig:
    """The parts that only an environment has."""

    documents: Path | None = None
    """A host folder whose files peek, grep, list_dir, archive_open and the searches may read."""
    worker: Worker | None = None
    """A small model that summarises spilled output: a prompt in, a text out."""
    web: WebPolicy | None = None
    """What web_fetch may get; unset: nothing."""
    search_server: str | None = None
    """The URL of a NextPLAID server that searches; unset: the embedded index does."""
    submit_fields: Mapping[str, type] | None = None
    """Names and types of the fields that an answer must have."""
    session_id: str | None = None
    """Names the folder of spilled output; unset: a random one."""
    redact: bool = True
    """Whether secrets are taken out of what goes to a model."""

    def __post_init__(self) -> None:
        if self.documents is not None:
            folder = Path(self.documents).expanduser().absolute()
            object.__setattr__(self, "documents", folder)


def split(
    config: REPLConfig | None, options: Mapping[str, Any]
) -> tuple[REPLConfig, EnvironmentConfig]:
    """The two objects that keyword arguments make."""
    own = {field.name for field in dataclasses.fields(EnvironmentConfig)}
    rest: Any = {name: value for name, value in options.items() if name not in own}
    settings = {name: value for name, value in options.items() if name in own}
    merged = merge(config, rest)
    merged = dataclasses.replace(merged, context=context_of(merged.context))
    return merged, EnvironmentConfig(**settings)


def index_of(context: Any) -> ContextIndex | None:
    """The index over a context: over the readable form, if it is data."""
    if context is None:
        return None
    if isinstance(context, Context) and not context.describe()["json"]:
        return ContextIndex.of(context)
    return ContextIndex.of(_of_data(context.value if isinstance(context, Context) else context))


def context_of(context: Any) -> Any:
    """Return a Context for a text or a path, so that guest and host share it; else the value."""
    if isinstance(context, os.PathLike):
        return from_path(context)
    return share_text(context) if isinstance(context, str) else context


def _of_data(value: Any) -> Context:
    return Context.from_text(json.dumps(value, indent=1, ensure_ascii=False, default=str))
