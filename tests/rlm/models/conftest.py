"""A stand-in server and models that ask it; nobody's own keys, proxies or prices."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from model_standin import KEY, Make, StandIn
from real_server import serve

from atoll.agent.rlm.models.client import Address, HttpModel, Limits
from atoll.agent.rlm.models.dialects import Anthropic, OpenAI


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """A real model with a small window, which ends with the tests."""
    with serve() as url:
        yield url


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in ("OPENAI", "ANTHROPIC", "OPENAI_COMPATIBLE"):
        monkeypatch.delenv(f"{provider}_API_KEY", raising=False)
        monkeypatch.delenv(f"{provider}_BASE_URL", raising=False)
    monkeypatch.delenv("ATOLL_PRICES", raising=False)


@pytest.fixture
async def server() -> AsyncIterator[StandIn]:
    one = StandIn()
    await one.start()
    yield one
    await one.stop()


@pytest.fixture
async def naps() -> list[float]:
    """How long a model waited between its attempts, had it waited."""
    return []


@pytest.fixture
async def openai(server: StandIn, naps: list[float]) -> AsyncIterator[Make]:
    made: list[HttpModel] = []

    async def nap(seconds: float) -> None:
        naps.append(seconds)

    def make(*, official: bool = False, key: str | None = KEY, **limits: float) -> HttpModel:
        model = HttpModel(
            "openai/gpt-5",
            dialect=OpenAI(official=official),
            address=Address.parse(server.url + "/v1"),
            key=key,
            limits=Limits(**{"timeout_seconds": 60, **limits}),  # type: ignore[arg-type]
            sleep=nap,
        )
        made.append(model)
        return model

    yield make
    for one in made:
        await one.close()


@pytest.fixture
async def anthropic(server: StandIn) -> AsyncIterator[HttpModel]:
    model = HttpModel(
        "anthropic/claude-sonnet-4-5",
        dialect=Anthropic(),
        address=Address.parse(server.url),
        key=KEY,
        limits=Limits(timeout_seconds=60, max_retries=0),
    )
    yield model
    await model.close()
