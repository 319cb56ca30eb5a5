"""What a call costs: the table, snapshots, long prompts, caches, a file of one's own."""

from __future__ import annotations

import json
import re

import pytest

from atoll.agent.rlm.models import prices
from atoll.agent.rlm.models.prices import Price, price_of
from atoll.agent.rlm.models.types import Usage
from atoll.errors import ConfigError

MILLION = 1_000_000


def test_tokens_are_paid_by_kind():
    usage = Usage(
        input_tokens=4 * MILLION,
        output_tokens=MILLION,
        cached_tokens=2 * MILLION,
        written_tokens=MILLION,
    )
    assert Price(1.0, 0.1, 10.0, 1.25).of(usage) == pytest.approx(1 + 0.2 + 1.25 + 10)
    assert Price(1.0, 0.1, 10.0).of(usage) == pytest.approx(2 + 0.2 + 10)


def test_a_long_prompt_costs_more_from_one_token_over():
    price = Price(1.0, 0.1, 10.0, None, 1000, 2.0, 1.5)
    short, long = (Usage(input_tokens=size, output_tokens=100) for size in (1000, 1001))
    assert price.of(short) == pytest.approx(2000 / MILLION)
    assert price.of(long) == pytest.approx((2002 + 1500) / MILLION)


def test_counts_that_contradict_each_other_are_never_a_gain():
    assert Price(1.0, 0.1, 10.0).of(Usage(input_tokens=1, cached_tokens=1000)) >= 0


@pytest.mark.parametrize(
    "name",
    [
        "anthropic/claude-sonnet-4-5-20260923",
        "anthropic/claude-sonnet-4-5-latest",
        "anthropic/claude-sonnet-4-5",
    ],
)
def test_a_snapshot_costs_what_its_model_costs(name):
    assert price_of(name) is prices.TABLE["anthropic/claude-sonnet-4-5"]


@pytest.mark.parametrize(
    "name", ["openai/gpt-5-pro", "openai/gpt-5.9", "openai/gpt-50", "local/gpt-5", "openai/"]
)
def test_a_model_that_only_begins_like_another_is_not_priced(name):
    assert price_of(name) is None


def test_a_model_on_this_machine_is_free():
    assert price_of("openai/gpt-5", local=True) == prices.FREE
    assert price_of("local/anything", local=True) == prices.FREE


def test_a_file_comes_before_the_table_and_before_free(tmp_path, monkeypatch):
    path = tmp_path / "prices.json"
    path.write_text(
        json.dumps(
            {
                "openai/gpt-5": {"input": 1, "output": 2, "cached": 0.5},
                "local/x": {"input": 3, "output": 4},
            }
        )
    )
    monkeypatch.setenv("ATOLL_PRICES", str(path))
    assert price_of("openai/gpt-5-2025-08-07") == Price(1, 0.5, 2)
    assert price_of("local/x", local=True) == Price(3, 3, 4)
    assert price_of("openai/gpt-5-mini") is prices.TABLE["openai/gpt-5-mini"]
    assert price_of("local/x", local=True, prices={}) == prices.FREE


@pytest.mark.parametrize(
    "text",
    ["", "no", "[]", '{"a/b": 1}', '{"a/b": {"input": 1}}', '{"a/b": {"input": -1, "output": 1}}',
     '{"a/b": {"input": "1", "output": 1}}', '{"a/b": {"input": NaN, "output": 1}}', '{"a/b": {"in": 1, "output": 1}}'],
)  # fmt: skip
def test_a_file_that_is_no_price_list_is_refused_by_name(tmp_path, text):
    path = tmp_path / "prices.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(str(path))):
        prices.load(path)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        prices.load(tmp_path / "none")


def test_every_row_of_the_table_is_sane():
    for name, price in prices.TABLE.items():
        assert name.startswith(("openai/", "anthropic/"))
        assert 0 < price.cached < price.input < price.output
