"""A guessed name is an AttributeError that says which name to use; nothing else changes."""

from __future__ import annotations

import copy
import pickle
import traceback

import pytest

import atoll
from atoll.files.base import SyncFiles
from atoll.sandbox.blocking import SyncSandbox
from atoll.text.name_hints import SandboxHints
from atoll.types import Outcome, SandboxResult


class Still(atoll.BaseSandbox):
    async def execute(self, code, *, timeout_ms=None, key=None):
        return SandboxResult(kind=Outcome.OK)

    async def validate_code(self, code):
        return True

    @property
    def broken(self):
        return self.missing_part


RESULT = SandboxResult(kind=Outcome.OK, stdout="1")


@pytest.mark.parametrize(
    ("thing", "name", "hint"),
    [
        (Still(), "run", "has no attribute 'run': use execute(code)"),
        (SyncSandbox(Still()), "close", "use destroy()"),
        (SyncSandbox(Still()), "upload", "use files.upload([(path, data)])"),
        (SyncSandbox(Still()), "excute", "did you mean 'execute'?"),
        (SyncSandbox(Still()), "numbers", "read by get_variable('numbers')"),
        (SyncFiles(Still().files, None), "list", "use ls(path)"),
        (RESULT, "returncode", "use exit_code"),
        (RESULT, "sucess", "did you mean 'success'?"),
        (atoll.RLM(lambda prompt: "FINAL('x')"), "ask", "use completion(question, context)"),
        (atoll, "createsandbox", "did you mean 'create_sandbox'?"),
        (atoll, "run", "atoll.create_sandbox() as box: box.execute(code)"),
        (atoll.aio.create_sandbox(), "execute", "async with atoll.aio.create_sandbox"),
    ],
)
def test_a_guessed_name_says_which_to_use(thing, name, hint):
    assert not hasattr(thing, name)
    with pytest.raises(AttributeError) as caught:
        getattr(thing, name)
    assert hint in str(caught.value)
    [line] = traceback.format_exception_only(caught.value)
    assert line.lower().count("did you mean") == hint.count("did you mean")


def test_hints_name_what_there_is():
    for hint in SandboxHints._guessed.values():
        name = hint.partition("(")[0]
        home, _, rest = name.partition(".")
        assert hasattr(SyncSandbox, home)
        assert not rest or hasattr(SyncFiles, rest)


def test_an_error_in_a_property_is_not_hidden():
    with pytest.raises(AttributeError, match="no attribute 'missing_part'"):
        _ = Still().broken


def test_results_are_copied_and_pickled_as_before():
    assert copy.deepcopy(RESULT) == pickle.loads(pickle.dumps(RESULT)) == RESULT
    assert not hasattr(RESULT, "__dict__")


async def test_the_wrong_kind_of_with_names_the_right_one():
    with pytest.raises(TypeError, match="write `async with"), atoll.aio.create_sandbox():
        pass
    with pytest.raises(TypeError, match="write `with`"):
        async with SyncSandbox(Still()):
            pass
