"""A context that is the name of a file: the caller is warned that the name itself is the text."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path

import pytest

import atoll
from atoll.agent.rlm.models.scripted import ScriptedModel
from atoll.service.api import agent_runs

OPTIONS = {"backend": "native", "preload": "bare"}


def in_sandbox(context):
    atoll.create_sandbox(context=context, **OPTIONS).destroy()


def in_async_sandbox(context):
    atoll.aio.create_sandbox(context=context, **OPTIONS)


def in_environment(context):
    atoll.REPLEnvironment(context=context, **OPTIONS).close()


async def in_async_environment(context):
    await atoll.aio.REPLEnvironment(context=context, **OPTIONS).close()


def in_run(context):
    with atoll.RLM(ScriptedModel(["yes"])) as rlm:
        rlm.completion("?", context)


async def in_async_run(context):
    async with atoll.aio.RLM(ScriptedModel(["yes"])) as rlm:
        await rlm.completion("?", context)


def in_session(context):
    with atoll.RLM(ScriptedModel(["yes"])) as rlm, rlm.session(context):
        pass


WAYS = [
    in_sandbox, in_async_sandbox, in_environment, in_async_environment, in_run, in_async_run,
    in_session,
]  # fmt: skip


def give(way, context):
    made = way(context)
    if asyncio.iscoroutine(made):
        asyncio.run(made)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "big.log").write_text("a line")
    (tmp_path / "logs").mkdir()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("way", WAYS)
def test_a_text_that_names_a_file_is_warned_of_once_where_it_is_given(way):
    with pytest.warns(UserWarning, match="the context is the text") as caught:
        give(way, "big.log")
    (one,) = caught
    text = "the context is the text 'big.log' itself, 7 characters. To read the file of that name"
    assert str(one.message) == f"{text}, give Path('big.log')"
    assert one.filename == __file__


def test_a_folder_is_called_one():
    with pytest.warns(UserWarning, match=r"To read the folder of that name, give Path\(.logs/.\)"):
        give(in_run, "logs/")


@pytest.mark.parametrize(
    "context", ["no.log", "", "big.log\nand more", "a\0b", "x" * 5000, {"a": 1}, Path("big.log")]
)
def test_other_contexts_are_not_warned_of(context):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        give(in_run, context)


def test_the_text_of_a_tenant_is_not_looked_up_on_the_host():
    """A call from inside Atoll, as the HTTP service makes it, warns of nothing."""
    with atoll.RLM(ScriptedModel(["yes"])) as rlm, warnings.catch_warnings():
        warnings.simplefilter("error")
        exec("rlm.completion('?', 'big.log')", {"__name__": agent_runs.__name__, "rlm": rlm})
