"""Tools of the host in the guest: their names, signatures and docstrings, and what they raise."""

from __future__ import annotations

import asyncio
import functools
import inspect

import pytest

import atoll
from atoll import Capability

pytestmark = pytest.mark.needs(Capability.BRIDGE)
IMPORTS = pytest.mark.needs(Capability.IMPORTS)


class QuotaError(Exception):
    """One that no guest knows."""


def lookup(code: str, limit: int = 10, *, deep: bool = False, key=object) -> dict[str, int]:
    """Look a code up.

    More about it.
    """
    return {"code": code, "limit": limit, "deep": deep, "key": key is object}


class Store:
    """A place with methods."""

    def find(self, name, /, *rest, default=None):
        """Find something."""
        return [name, *rest, default]

    def __call__(self, amount: int) -> int:
        """Count."""
        return amount + 1


async def ask(question, more=("a", 1)):
    """Ask somebody."""
    await asyncio.sleep(0)
    return [question, more]


TOOLS = {
    "lookup": lookup,
    "find": Store().find,
    "count": Store(),
    "ask": ask,
    "near": functools.partial(lookup, "near", limit=3),
    "largest": max,
}


@IMPORTS
def test_signatures_and_docstrings_are_those_of_the_host(open_box):
    box = open_box(tools=TOOLS)
    code = "import inspect\n[(f.__name__, str(inspect.signature(f)), inspect.getdoc(f)) for f in ({},)]"
    named = {
        name: (signature, doc)
        for name, signature, doc in box.execute(code.format(", ".join(TOOLS))).value
    }
    assert named["lookup"] == (
        "(code: str, limit: int = 10, *, deep: bool = False, key=...) -> dict[str, int]",
        "Look a code up.\n\nMore about it.",
    )
    assert named["find"] == ("(name, /, *rest, default=None)", "Find something.")
    assert named["count"] == ("(amount: int) -> int", "Count.") or named["count"][1].startswith("A")
    assert named["ask"] == ("(question, more=('a', 1))", "Ask somebody.")
    assert named["near"][0].startswith("(*, limit: int = 3, deep: bool = False, key=...)")
    assert named["largest"] == ("(*args, **kwargs)", inspect.getdoc(max))


@IMPORTS
def test_help_shows_a_tool(open_box):
    result = open_box(tools=TOOLS).execute("help(lookup)")
    assert "lookup(code: str, limit: int = 10, *, deep: bool = False, key=...)" in result.stdout
    assert "    Look a code up." in result.stdout


def test_arguments_arrive_as_they_were_given(open_box):
    box = open_box(tools=TOOLS)
    for call, value in (
        ("lookup('a')", {"code": "a", "limit": 10, "deep": False, "key": True}),
        ("lookup('a', deep=True)", {"code": "a", "limit": 10, "deep": True, "key": True}),
        ("lookup(limit=2, code='a')", {"code": "a", "limit": 2, "deep": False, "key": True}),
        ("lookup('a', key=5)", {"code": "a", "limit": 10, "deep": False, "key": False}),
        ("find('a')", ["a", None]),
        ("find('a', 'b', default=2)", ["a", "b", 2]),
        ("count(2)", 3),
        ("ask('q')", ["q", ("a", 1)]),
        ("ask('q', more=[])", ["q", []]),
        ("near(deep=True)", {"code": "near", "limit": 3, "deep": True, "key": True}),
        ("largest([1, 3, 2])", 3),
        ("largest(1, 5, 2)", 5),
    ):
        assert box.execute(call).value == value, call


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("lookup()", "lookup() missing 1 required positional argument: 'code'"),
        ("lookup('a', 2, 3)", "lookup() takes from 1 to 2 positional arguments but 3 were given"),
        ("lookup('a', wrong=1)", "lookup() got an unexpected keyword argument 'wrong'"),
    ],
)
def test_a_wrong_call_is_a_type_error_in_the_usual_words(open_box, call, error):
    called = []
    box = open_box(tools={"lookup": functools.wraps(lookup)(lambda *a, **k: called.append(a))})
    result = box.execute(call)
    assert (result.error, result.error_type) == (f"TypeError: {error}", "TypeError")
    assert result.stderr.rstrip().endswith(f"TypeError: {error}")
    assert called == []


@pytest.mark.parametrize("given", ["mapping", "list", "tool"])
def test_an_argument_of_another_type_is_a_type_error_that_never_reaches_the_function(
    open_box, given
):
    called = []

    def plain(city: str, limit: int = None) -> str:  # noqa: RUF013
        called.append(city)
        return city

    tools = {"mapping": {"plain": plain}, "list": [plain], "tool": [atoll.tool(plain)]}[given]
    box = open_box(tools=tools)
    result = box.execute("try:\n    plain(5)\nexcept TypeError as exc:\n    print(exc)")
    assert result.stdout.startswith("plain: city must be str, not int"), result
    assert called == []
    assert box.execute("plain('a', None)").value == "a"  # its own default is taken


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (ValueError("no such code"), "ValueError: no such code"),
        (KeyError("name"), "KeyError: 'name'"),
        (KeyError(5), "KeyError: 5"),
        (
            FileNotFoundError(2, "No such file", "x.txt"),
            "FileNotFoundError: [Errno 2] No such file: 'x.txt'",
        ),
        (NotImplementedError("later"), "NotImplementedError: later"),
        (TimeoutError(), "TimeoutError"),
        (RuntimeError("plain"), "RuntimeError: plain"),
        (QuotaError("over quota"), "QuotaError: over quota"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (StopIteration(7), "StopIteration: 7"),
        (asyncio.CancelledError("gone"), "CancelledError: gone"),
        (
            UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
            "UnicodeDecodeError: 'utf-8' codec can't decode byte 0x78 in position 0: bad",
        ),
    ],
)
def test_an_exception_keeps_its_type_name_and_message(open_box, raised, error):
    def fail():
        raise raised

    async def fail_later():
        await asyncio.sleep(0)
        raise raised

    tools = {"fail": fail}
    if not isinstance(raised, StopIteration):  # Python makes a RuntimeError of it
        tools["fail_later"] = fail_later
    box = open_box(tools=tools)
    for name in tools:
        result = box.execute(f"{name}()")
        assert (result.kind, result.error) == ("error", error)
        assert result.error_type == type(raised).__name__
        assert result.stderr.rstrip().splitlines()[-1] == error
        assert __file__ not in result.stderr
        assert "HostCallError" not in result.stderr
    assert box.execute("1").value == 1


@pytest.mark.parametrize(
    ("raised", "caught"),
    [
        (ValueError("v"), "ValueError"),
        (KeyError("k"), "LookupError"),
        (PermissionError("p"), "OSError"),
        (QuotaError("q"), "HostCallError"),
        (ValueError("v"), "HostCallError"),
        (SystemExit(1), "Exception"),
    ],
)
def test_guest_code_catches_it_by_its_type(open_box, raised, caught):
    def fail():
        raise raised

    box = open_box(tools={"fail": fail})
    code = f"try:\n    fail()\nexcept {caught} as exc:\n    print(type(exc).__name__)"
    assert box.execute(code).stdout == type(raised).__name__ + "\n"
    code = code.replace("fail()", "call_host('fail')")
    assert box.execute(code).stdout == type(raised).__name__ + "\n"


class Hostile:
    """A tool whose signature is not one."""

    def __init__(self, signature):
        self.__signature__ = signature

    def __call__(self, *args):
        return len(args)


class Strange(inspect.Parameter):
    """A parameter with any text as its name."""

    name = "x): import os; os.abort() #"


@pytest.mark.parametrize(
    "signature",
    [
        pytest.param(
            inspect.Signature([Strange("x", inspect.Parameter.POSITIONAL_ONLY)]), id="name"
        ),
        pytest.param("no signature", id="no signature"),
        pytest.param(
            inspect.Signature(
                [inspect.Parameter("a", inspect.Parameter.POSITIONAL_ONLY)],
                return_annotation='x\'"""\n%s{}' * 1000,
            ),
            id="annotation",
        ),
    ],
)
def test_a_hostile_signature_is_no_more_than_text(open_box, signature):
    box = open_box(tools={"tool": Hostile(signature)})
    assert box.execute("tool(1)").value == 1


def test_an_exception_with_a_hostile_name_is_a_plain_one(open_box):
    def fail():
        raise type("x; import os", (Exception,), {})("text" * 10_000)

    result = open_box(tools={"fail": fail}).execute("fail()")
    assert result.error_type.endswith("HostCallError")
    assert len(result.error) < 3000


def test_an_exception_without_a_message_that_can_be_shown_does_not_hang_the_guest(open_box):
    class MuteError(Exception):
        def __str__(self):
            raise RuntimeError("no")

    def fail():
        raise MuteError

    result = open_box(tools={"fail": fail}).execute("fail()", timeout_ms=15_000)
    assert result.error == "MuteError: <the message could not be shown>"


@pytest.mark.needs(Capability.SAVE)
def test_a_caught_exception_is_kept_in_a_state(open_box):
    def fail():
        raise KeyError("kept")

    box = open_box(tools={"fail": fail})
    box.execute("try:\n    fail()\nexcept KeyError as exc:\n    caught = exc")
    restored = open_box(state=box.save())
    assert restored.execute("type(caught) is KeyError, caught.args").value == (True, ("kept",))
