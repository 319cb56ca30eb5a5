"""Find everything that `atoll ask` lacks before it starts, and say it in one message."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

from atoll.agent.rlm.models.local import server
from atoll.agent.rlm.models.local.weights import QWEN, Store, in_words
from atoll.agent.rlm.models.resolve import PROVIDERS, REPLAY
from atoll.config import (
    model_address_from_environment,
    model_from_environment,
    model_key_from_environment,
)
from atoll.errors import ConfigError
from atoll.extras import install_command

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

LOCAL = "local"
"""The name of the model that `atoll model get` downloads, as --model takes it."""
STDIN = "-"
HTTP_CLIENT = "httpx2"
NO_KEY = f"""
Other ways:
  atoll ask --demo           watch a recorded run; needs no model and no network
  atoll model get            download a small local model ({in_words(QWEN.size)}), then:
  atoll ask 'QUESTION' --context FILE --model local"""


def check(args: Namespace) -> None:
    """Raise ConfigError if something is missing; the message names all of it."""
    no_model = list(_model(args))
    lacks = [*_question(args), *no_model, *_context(args)]
    if not lacks:
        return
    if not args.context and not args.demo:
        lacks.append("no context (optional). Add --context FILE or FOLDER, or - for stdin")
    told = "\n".join(f"  - {one}" for one in lacks)
    other_ways = NO_KEY if no_model and model_of(args) != LOCAL else ""
    raise ConfigError(f"`atoll ask` cannot start:\n{told}{other_ways}")


def model_of(args: Namespace) -> str:
    """Return the name of the model that the options or ATOLL_MODEL name; empty if none does."""
    return LOCAL if args.local else args.model or model_from_environment() or ""


def _question(args: Namespace) -> Iterator[str]:
    if args.question is None:
        yield "no question. Type it in quotes: atoll ask 'Who signed it?' --context FILE"
    elif not args.question.strip():
        yield "the question is empty. Type one in quotes: atoll ask 'Who signed it?' --context FILE"


def _model(args: Namespace) -> Iterator[str]:
    name = model_of(args)
    packages: list[str] = []
    if name == LOCAL:
        if not Store().complete:
            size = in_words(QWEN.size)
            yield f"the local model is not downloaded. Type: atoll model get (downloads {size})"
        if not server.is_installed():
            packages.append(server.LIBRARY)
    elif not name:
        yield "no model. Add --model openai/NAME or --model anthropic/NAME, or set ATOLL_MODEL"
        yield from _any_key()
    names = [one for one in (name, args.sub_model) if one and one != LOCAL]
    for one in dict.fromkeys(names):
        yield from _named(one, args.base_url)
    if not all(one.startswith(REPLAY) for one in (name, *names)) and not _importable():
        packages.append(HTTP_CLIENT)
    if packages:
        extras = {server.LIBRARY: "localllm", HTTP_CLIENT: "llm"}
        install = install_command(*(extras[one] for one in packages))
        yield f"not installed: {' and '.join(packages)}. Type: {install}"


def _any_key() -> Iterator[str]:
    """Say that there is no key, if no provider has one: the model is not chosen yet."""
    keys = [one.key_variable for one in PROVIDERS.values() if one.key_needed and one.key_variable]
    if not any(map(model_key_from_environment, keys)):
        yield "no API key. Type: " + " or: ".join(f"export {one}=..." for one in keys)


def _named(name: str, base_url: str | None) -> Iterator[str]:
    """Say what the provider of a model needs and does not have."""
    if name.startswith(REPLAY):
        return
    kind, _, rest = name.partition("/")
    provider = PROVIDERS.get(kind)
    if provider is None or not rest:
        known = ", ".join(f"{one}/NAME" for one in PROVIDERS)
        yield f"there is no model {name!r}. A name is one of {known}, or local"
        return
    variable = provider.address_variable
    address = base_url or (variable and model_address_from_environment(variable))
    if not (address or provider.address):
        yield f"{name} has no address. Add its server: --base-url http://127.0.0.1:8000/v1"
    key = provider.key_variable
    needs_key = provider.key_needed and (address or provider.address) == provider.address
    if needs_key and key and not model_key_from_environment(key):
        yield f"no API key for {name}. Type: export {key}=..."


def _context(args: Namespace) -> Iterator[str]:
    if args.context.count(STDIN) > 1:
        yield "stdin can be read once: give --context - once"
    for one in args.context:
        if one != STDIN and not os.path.exists(os.path.expanduser(one)):
            yield f"cannot read {one}: there is no such file or folder"


def _importable() -> bool:
    return importlib.util.find_spec(HTTP_CLIENT) is not None
