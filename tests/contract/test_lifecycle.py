"""The life of a sandbox: started with a context, used, destroyed, on every backend."""

from __future__ import annotations

import pytest

import atoll
from atoll import Capability


@pytest.mark.spec("R0.1")
@pytest.mark.parametrize(
    "context",
    [
        "plain text",
        "",
        "naïve – Ω – 😀",
        "\ud800 lone",
        {"rows": [1, 2.5, None, True], "näme": "ü"},
        [],
        42,
        {"tuple": (1, 2), 3: b"bytes"},
    ],
)
def test_context_is_a_variable_of_the_guest(open_box, context):
    box = open_box(context=context)
    assert box.get_variable("context") == context


@pytest.mark.spec("R0.1")
@pytest.mark.parametrize("letter", ["a", "é", "Ω", "😀"], ids=["ascii", "latin", "ucs2", "ucs4"])
def test_a_large_context_is_a_real_str(open_box, letter):
    text = "".join(f"line {n} {letter}\n" for n in range(50_000))
    box = open_box(context=text)
    result = box.execute(
        "import hashlib\n"
        "digest = hashlib.sha256(context.encode()).hexdigest()\n"
        "facts = [type(context).__name__, len(context), context[-5:], hash(context) == hash(context[:]),"
        " context == ''.join(context.splitlines(True)), context.isascii(), {context: 1}[context]]\n"
        "grown = context + 'x'"
    )
    assert result.success, result.stderr
    assert box.get_variable("facts") == ["str", len(text), text[-5:], True, True, letter == "a", 1]
    import hashlib

    assert box.get_variable("digest") == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.spec("R0.1")
def test_a_large_json_context_arrives_as_data(open_box):
    rows = [{"id": n, "name": f"row {n}"} for n in range(20_000)]
    box = open_box(context=rows)
    assert box.execute("context[19_999]['name'], len(context)").value == ("row 19999", 20_000)


@pytest.mark.spec("R0.1")
@pytest.mark.needs(Capability.SHARED_CONTEXT)
def test_a_context_from_a_file_is_shared_and_whole(open_box, tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("".join(f"E{n}\n" for n in range(100_000)))
    context = atoll.Context.from_file(path)
    first, second = open_box(context=context), open_box(context=context)
    for box in (first, second):
        assert box.execute("len(context), context[-7:]").value == (context.length, "E99999\n")
    assert context.value == path.read_text()


@pytest.mark.spec("R0.1")
def test_initialize_again_starts_afresh(box):
    box.execute("x = 1")
    box.initialize("second")
    assert box.execute("context").value == "second"
    assert box.get_variable("x", "gone") == "gone"


@pytest.mark.spec("R0.3", "R0.20")
def test_state_lives_on_between_executions(box):
    box.execute("import math\ndef area(r): return math.pi * r ** 2\nclass Box: size = 3")
    result = box.execute("print(round(area(2), 3), Box().size)")
    assert (result.stdout, result.error, result.success) == ("12.566 3\n", None, True)
    assert result.duration_ms > 0
    assert result.isolation == box.isolation
    assert result.kind == "ok"


@pytest.mark.spec("R0.3")
@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", 2),
        ("x = 5\nx * 2", 10),
        ("x = 5", None),
        ("None", None),
        ("'a'; 'b'", "b"),
        ("", None),
    ],
)
def test_the_last_expression_is_the_value(box, code, value):
    result = box.execute(code)
    assert result.value == value
    assert result.value_repr == (None if value is None else repr(value))
    assert result.stdout == ""


@pytest.mark.spec("R0.3")
def test_underscore_is_the_last_value(box):
    box.execute("20 + 1")
    assert box.execute("_ * 2").value == 42


@pytest.mark.spec("R0.2")
def test_destroy_twice_is_harmless_and_the_sandbox_is_closed(open_box):
    box = open_box()
    box.destroy()
    box.destroy()
    with pytest.raises(atoll.SandboxClosedError, match="the sandbox is closed"):
        box.execute("1")


@pytest.mark.spec("R0.2")
async def test_async_with_destroys(backend):
    async with atoll.aio.create_sandbox(backend=backend) as box:
        assert (await box.execute("6 * 7")).value == 42
    with pytest.raises(atoll.SandboxClosedError):
        await box.execute("1")


@pytest.mark.spec("R0.20")
def test_every_sandbox_has_the_interface(box):
    inner = box.inner
    assert isinstance(inner, atoll.Sandbox)
    assert isinstance(inner, atoll.BaseSandbox)


@pytest.mark.spec("R0.20")
async def test_two_sandboxes_do_not_share_state(backend):
    async with (
        atoll.aio.create_sandbox(backend=backend) as one,
        atoll.aio.create_sandbox(backend=backend) as two,
    ):
        await one.execute("x = 'one'")
        await two.execute("x = 'two'")
        assert (await one.execute("x")).value == "one"
        assert (await two.execute("x")).value == "two"


@pytest.mark.spec("R0.3")
@pytest.mark.needs(Capability.IMPORTS)
def test_classes_of_the_session_can_be_pickled_within_it(box):
    code = "import pickle\nclass P: x = 3\np = pickle.loads(pickle.dumps(P()))\np.x"
    assert box.execute(code).value == 3
