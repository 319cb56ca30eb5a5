"""From a name such as `openai/gpt-5` to a model that can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll import config
from atoll.agent.rlm.models import dialects, prices
from atoll.agent.rlm.models.client import (
    DEFAULT_RETRIES,
    DEFAULT_TIMEOUT_SECONDS,
    Address,
    HttpModel,
    Limits,
)
from atoll.agent.rlm.models.local import LocalModel
from atoll.agent.rlm.models.recorded import Replay
from atoll.agent.rlm.models.scripted import FunctionModel
from atoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from atoll.agent.rlm.models.dialects import Dialect
    from atoll.agent.rlm.models.types import Model

    AnyModel = str | Model | Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """What a name's first half stands for."""

    address: str | None
    address_variable: str | None = None
    key_variable: str | None = None
    key_needed: bool = False
    """At the address above; elsewhere a server may want none."""


PROVIDERS = {
    "openai": Provider(
        address=dialects.OPENAI_URL,
        address_variable="OPENAI_BASE_URL",
        key_variable="OPENAI_API_KEY",
        key_needed=True,
    ),
    "anthropic": Provider(
        address=dialects.ANTHROPIC_URL,
        address_variable="ANTHROPIC_BASE_URL",
        key_variable="ANTHROPIC_API_KEY",
        key_needed=True,
    ),
    "ollama": Provider(address="http://127.0.0.1:11434/v1"),
    # A key of their own: OpenAI's never goes to a server that is somebody else's.
    "openai-compatible": Provider(address=None, key_variable="OPENAI_COMPATIBLE_API_KEY"),
    "local": Provider(address=None, key_variable="OPENAI_COMPATIBLE_API_KEY"),
}


LOCAL = "local"
"""The model that `atoll model get` downloads."""
REPLAY = "replay/"
"""Before the path of a record: its replies, and no server."""


def resolve(
    model: AnyModel,
    *,
    base_url: str | None = None,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    max_retries: int = DEFAULT_RETRIES,
    limits: Limits | None = None,
    price_table: Mapping[str, prices.Price] | None = None,
) -> Model:
    """Return the model of that name; a Model is returned unchanged.

    Keys and addresses come from this process's environment. `limits` are instead of the two.
    """
    if not isinstance(model, str):
        return _given(model)
    if model.startswith(REPLAY):
        return Replay(model.removeprefix(REPLAY))
    if model == LOCAL and base_url is None:
        return LocalModel(lambda name, url: resolve(name, base_url=url, limits=limits))
    kind, provider = _provider(model)
    address = Address.parse(_address(model, provider, base_url))
    official = address.url == provider.address
    key = config.variable(provider.key_variable or "") or None
    if key is None and provider.key_needed and official:
        raise ConfigError(f"{model} needs a key. Type: export {provider.key_variable}=...")
    return HttpModel(
        model,
        dialect=_dialect(kind, provider, official=official),
        address=_without_version(address) if kind == "anthropic" else address,
        key=key,
        price=prices.price_of(model, local=address.local, prices=price_table),
        limits=limits or Limits(timeout_seconds=timeout_seconds, max_retries=max_retries),
    )


@dataclass(frozen=True, slots=True)
class Models:
    """The model of a run, and that of its sub-calls."""

    main: Model
    sub: Model

    def at(self, depth: int) -> Model:
        """Return the model that works on a question: the second on one that a run asks."""
        return self.sub if depth else self.main

    async def close(self) -> None:
        """Close their connections."""
        await self.main.close()
        if self.sub is not self.main:
            await self.sub.close()


def resolve_both(model: AnyModel, sub_model: AnyModel | None, base_url: str | None) -> Models:
    """Return the model of a run and that of its sub-calls; unset: the same.

    `base_url` is the second one's too where both have one provider: a key goes nowhere else.
    """
    main = resolve(model, base_url=base_url)
    if sub_model is None or sub_model == model:
        return Models(main, main)
    providers = {name.partition("/")[0] for name in (model, sub_model) if isinstance(name, str)}
    shared = len(providers) == 1
    return Models(main, resolve(sub_model, base_url=base_url if shared else None))


def _given(model: Any) -> Model:
    """Return a Model that was given, or a function as one."""
    if callable(getattr(model, "complete", None)):
        result: Model = model
        return result
    if callable(model):
        return FunctionModel(model)
    raise ConfigError(
        f"not a model: {type(model).__name__}. Give a name such as 'openai/gpt-5', a function that "
        "takes a prompt and returns a text, or an object with `complete` as in atoll.Model"
    )


def _provider(model: str) -> tuple[str, Provider]:
    kind, _, name = model.partition("/")
    if kind not in PROVIDERS or not name:
        known = ", ".join(f"{name}/..." for name in [*PROVIDERS, "replay"])
        raise ConfigError(f"no model {model!r}: a name is provider/model, one of {known}, or local")
    return kind, PROVIDERS[kind]


def _address(model: str, provider: Provider, base_url: str | None) -> str:
    result = base_url or config.variable(provider.address_variable or "") or provider.address
    if result is None:
        raise ConfigError(f"{model} needs base_url, such as http://127.0.0.1:8000/v1")
    return result.rstrip("/")


def _dialect(kind: str, provider: Provider, *, official: bool) -> Dialect:
    if kind == "anthropic":
        return dialects.Anthropic()
    variable = provider.key_variable or "OPENAI_COMPATIBLE_API_KEY"
    return dialects.OpenAI(key_variable=variable, official=official and kind == "openai")


def _without_version(address: Address) -> Address:
    """Anthropic's own addresses end before /v1, others' after it: both are taken."""
    return Address.parse(address.url.removesuffix("/v1"))
