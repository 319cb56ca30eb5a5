"""The research context: a graph of what was looked at, built from the invocation log."""

from __future__ import annotations

import json
import os

import pytest

import atoll
from atoll.agent.environment.research import graph as research_module
from atoll.agent.environment.research.graph import PREFIXES, ResearchContext
from atoll.agent.environment.tools.invocations import (
    Invocation,
    InvocationLog,
    arguments_of,
    result_fields,
)
from atoll.agent.retrieval import vectors

LOG = "".join(f"{n:05} all is well\n" for n in range(2000)).replace(
    "01234 all is well", "01234 the pump failed: code 77 in the boiler room"
)


def call(tool, found="", turn="turn 1", outcome="ok", **arguments):
    told = result_fields(found)
    return Invocation(
        tool=tool, sizes={}, parent=turn, outcome=outcome, arguments=arguments, **told
    )


def by_text(**options):
    return ResearchContext(use_semantic=False, **options)


class Taught:
    """An embedder whose vectors are written down."""

    name = "taught"

    def __init__(self, known):
        self.known, self.asked = known, 0

    def embed(self, text):
        self.asked += 1
        return self.known.get(text, [0.0, 0.0, 1.0])


@pytest.fixture
def env():
    with atoll.REPLEnvironment(
        backend="native",
        context=LOG,
        on_llm_query=lambda prompt: "The pump failed, based on G1.",
        semantic_references=False,
    ) as found:
        yield found


def test_ids_have_the_prefix_of_their_tool_and_count_up():
    context = by_text()
    tools = [*PREFIXES, "archive_open", "population"]
    ids = [context.add(call(tool)).id for tool in tools]
    assert ids == ["G1", "P1", "L1", "L2", "L3", "D1", "W1", "R1", "CS1", "DS1", "N1", "T1", "T2"]
    assert context.add(call("grep")).id == "G2"
    assert context.add(call("FINAL")) is None


def test_a_call_follows_the_one_before_it_and_calls_of_one_loop_stand_side_by_side():
    context = by_text()
    for one in (call("grep", "x"), call("peek", "y"), call("peek", "z"), call("list_dir", "q")):
        context.add(one)
    assert [(one.id, one.parent) for one in context.nodes] == [
        ("G1", None), ("P1", "G1"), ("P2", "G1"), ("D1", "P2"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("then", "refers"),
    [
        (call("llm_query", "ok", prompt="Who is meant, see G1?"), ("G1",)),
        (call("llm_query", "It was Ada (G1, D1)."), ("G1", "D1")),
        (call("note", text="G1 and D1 agree"), ("G1", "D1")),
        (call("peek", "text", path="letters/ada.txt"), ("D1",)),
        (
            call("llm_query", "yes", prompt="Who?\n00812 Ada took the room above the bakery."),
            ("G1",),
        ),
        (call("llm_query", "ok", prompt="a P1 incident in room G1"), ()),
        (call("grep", "see G1", pattern="P1"), ("G1",)),
        (call("note", text="G7 is not there"), ()),
    ],
)
def test_references_by_text(then, refers):
    context = by_text()
    context.add(call("grep", "00812 Ada took the room above the bakery.", pattern="Ada"))
    context.add(call("list_dir", ["letters/ada.txt", "letters/bob.txt"]))
    node = context.add(then)
    assert node.references == refers
    assert node.parent == (refers[-1] if refers else "D1")
    analyzed = {one.id for one in context.nodes if one.status == "analyzed"}
    assert analyzed - {"N1"} == set(refers)


@pytest.mark.spec("R4.16")
def test_the_tree_is_drawn_as_specified():
    context = by_text()
    context.add(call("grep", "Found 3 matches in log file", pattern="error"))
    context.add(call("peek", "Error at line 42: connection timeout, see G1", n=100))
    context.add(call("list_dir", ["log.txt"], turn="turn 2"))
    assert context.tree().startswith("""\
## Research Context
Progress: 1 analyzed, 2 pending, 0 stale

[+] G1: grep(pattern='error')
    -> Found 3 matches in log file
  [?] P1: peek(n=100)
      -> Error at line 42: connection timeout, see G1
      refs: G1
""")


@pytest.mark.spec("R4.16")
@pytest.mark.parametrize("tool", ["peek", "grep", "doc_search", "llm_query", "web_fetch"])
def test_a_result_that_says_what_it_is_based_on_refers_to_it(tool):
    context = by_text()
    context.add(call("grep", "x"))
    context.add(call("peek", "y", n=1))
    assert context.add(call(tool, "As it is, based on P1.")).references == ("P1",)
    assert {one.id: one.status for one in context.nodes}["P1"] == "analyzed"


def test_a_node_that_the_answer_names_was_analyzed(env):
    env.execute("grep('failed'); peek(40)")
    env.execute("FINAL('something else, based on P1')")
    assert [one.status for one in env.research.nodes] == ["pending", "analyzed"]


def test_references_by_meaning_are_those_above_the_threshold():
    near, far = [0.71, 0.7042, 0.0], [0.69, 0.7238, 0.0]
    vectors = {"a": [1.0, 0.0, 0.0], "near": near, "far": far}
    context = ResearchContext(embedder=Taught(vectors))
    for text in ("a", "far", "near"):
        context.add(call("peek", text))
    context.relate()
    assert {one.found: one.similar for one in context.nodes}["near"][-1] == "P1"
    assert {one.found: one.similar for one in context.nodes}["far"] == ()
    assert context.semantic == "on"


def test_meaning_is_looked_up_once_for_each_node_and_from_three_nodes_on():
    taught = Taught({})
    context = ResearchContext(embedder=taught)
    context.add(call("peek", "a"))
    context.add(call("peek", "b"))
    assert context.tree() is None
    assert taught.asked == 0
    context.add(call("peek", "c"))
    assert context.tree() == context.tree()
    assert taught.asked == 3


def test_without_the_encoder_references_are_by_text_and_the_tree_says_so(monkeypatch):
    monkeypatch.setattr(vectors, "is_installed", lambda: False)
    context = ResearchContext()
    for text in ("the pump failed", "the pump has failed", "all is well"):
        context.add(call("peek", text))
    assert "References by text alone: the extra `semantic` is not installed" in context.tree()
    assert not any(one.similar for one in context.nodes)
    assert [node.id for _, node in context.recall("which pump failed?")][:2] == ["P1", "P2"]


@pytest.mark.skipif(not vectors.is_installed(), reason="needs the extra `semantic`")
def test_the_embedded_encoder_finds_what_means_the_same():
    context = ResearchContext()
    for text in (
        "The invoice from March has not been paid yet.",
        "Whales are the largest animals of the sea.",
        "Nobody has paid the March invoice so far.",
    ):
        context.add(call("peek", text))
    context.relate()
    assert [one.similar for one in context.nodes] == [(), (), ("P1",)]
    assert context.recall("big animals in the ocean", 1)[0][1].id == "P2"


def test_an_encoder_that_fails_leaves_references_by_text():
    class Broken:
        name = "broken"

        def embed(self, text):
            raise RuntimeError("no memory")

    context = ResearchContext(embedder=Broken())
    for text in "abc":
        context.add(call("peek", text))
    assert "the encoder failed: no memory" in context.tree()


def test_the_same_call_with_another_result_makes_the_first_stale_and_what_refers_to_it():
    context = by_text()
    context.add(call("list_dir", ["notes.txt"]))
    context.add(call("peek", "version 1", path="notes.txt"))
    context.add(call("grep", "x"))
    assert {one.status for one in context.nodes} == {"analyzed", "pending"}
    context.add(call("list_dir", ["notes.txt", "more.txt"], turn="turn 2"))
    assert [one.status for one in context.nodes] == ["stale", "stale", "pending", "pending"]
    context.add(call("llm_query", "yes", prompt="?"))
    context.add(call("llm_query", "no", prompt="?"))
    assert [one.status for one in context.nodes][-2:] == ["pending", "pending"]


def test_a_document_that_changed_makes_its_nodes_stale():
    times = {"a.txt": "1", "b.txt": "1"}
    context = by_text(fingerprint=times.get)
    for path in ("a.txt", "b.txt"):
        context.add(call("peek", f"text of {path}", path=path))
    context.add(call("note", text="P1 tells it"))
    times["a.txt"] = "2"
    context.refresh()
    assert [one.status for one in context.nodes] == ["stale", "pending", "stale"]


def test_to_dict_and_back_and_reset():
    context = by_text()
    for one in (call("grep", "x\ny", pattern="x"), call("peek", "y", n=5), call("note", text="G1")):
        context.add(one)
    told = json.loads(json.dumps(context.to_dict()))
    again = ResearchContext.from_dict(told, use_semantic=False)
    assert again.nodes == context.nodes
    assert again.tree() == context.tree()
    assert again.add(call("grep")).id == "G2"
    again.reset()
    assert again.nodes == ()
    assert again.add(call("grep")).id == "G1"
    for damaged in ({}, {"nodes": [1]}, {**told, "nodes": [{"id": 1}]}, {**told, "numbers": 3}):
        with pytest.raises(atoll.StateError, match="damaged"):
            ResearchContext.from_dict(damaged)


def test_old_nodes_are_forgotten_and_counted(monkeypatch):
    monkeypatch.setattr(research_module, "MAX_NODES", 5)
    context, log = by_text(), InvocationLog()
    for number in range(4):
        log.add(call("peek", str(number)), explored=True)
    context.update(log)
    for number in range(4, 8):
        log.add(call("peek", str(number)), explored=True)
    context.update(log)
    assert [one.found for one in context.nodes] == list("34567")
    assert context.forgotten == 3
    assert "(3 earlier calls are left out)" in context.tree()


def test_what_is_kept_of_a_call_is_short():
    told = result_fields({"hits": [{"text": "x" * 3000}] * 50})
    assert len(told["found"]) == 700
    assert told["found_tokens"] > 1000
    given = arguments_of(lambda a, b=1: 0, ("y" * 9999,), {"b": [1] * 9})
    assert given == {"a": "y" * 500, "b": "list of 9"}


@pytest.mark.spec("R4.16")
@pytest.mark.spec("R4.24")
def test_a_model_that_greps_and_peeks_gets_a_tree(env):
    env.execute("hits = grep('failed')")
    assert "research" not in env.get_state()
    env.execute("peek(40)")
    env.execute("note('G1 says it all')\nllm_query('What failed? ' + hits[0]['text'])")
    assert (
        env.get_state()["research"]
        == """\
## Research Context
Progress: 2 analyzed, 2 pending, 0 stale

[+] G1: grep(pattern='failed')
    -> 01234 the pump failed: code 77 in the boiler room
  [?] P1: peek(n=40)
      -> 00000 all is well 00001 all is well 0000
  [+] N1: note
      -> G1 says it all
      refs: G1
  [?] L1: llm_query(prompt='What failed? 01234 the pump failed: code 77 in the boiler room')
      -> The pump failed, based on G1.
      refs: G1

References by text alone: references by meaning are off"""
    )
    env.reset()
    state = env.get_state()
    assert "research" not in state
    assert (state["turns"], state["calls"], state["final"]) == (0, {}, None)


def test_recall_finds_what_was_found_and_without_a_query_shows_the_tree(env):
    env.execute("grep('failed'); peek(40); list_dir()")
    found = env.execute("recall('pump failed', 1)").result.value
    assert [(one["id"], one["status"]) for one in found] == [("G1", "pending")]
    assert "## Research Context" in env.execute("print(recall()[0]['tree'])").observation
    assert "must be a text" in env.execute("note('')").observation
    assert "recall(query)" in env.tool_list()
    assert "note(text)" in env.tool_list()


def test_what_the_answer_quotes_was_analyzed(env):
    env.execute("grep('failed'); peek(40)")
    env.execute("FINAL('code 77', quotes=['the pump failed: code 77'])")
    assert [(one.id, one.status) for one in env.research.nodes] == [
        ("G1", "analyzed"), ("P1", "pending"),
    ]  # fmt: skip


@pytest.mark.spec("R4.16")
def test_what_was_found_in_own_files_is_in_log_tree_and_recall(env):
    env.execute("open('own.txt', 'w').write('alpha beam\\nbeta beam\\n' * 3000)")
    turn = env.execute(
        "peek('own.txt', 21)\nhits = grep('own.txt', 'beta')\npeek('own.txt', 60_000)"
    )
    peeked, grepped, long = turn.calls
    assert peeked.found == "alpha beam\nbeta beam\n"
    assert peeked.arguments == {"n": 21, "path": "own.txt"}
    assert grepped.found.splitlines()[:2] == ["beta beam", "beta beam"]
    assert 5_000 < long.found_tokens < 60_000
    assert env.invocations.explored == 3
    tree = env.get_state()["research"]
    assert "P1: peek(n=21, path='own.txt')\n    -> alpha beam beta beam" in tree
    assert "elsewhere" not in tree
    assert env.execute("recall('alpha', 1)[0]['id']").result.value == "P2"
    missing = env.execute("peek('no.txt')")
    assert "there is no file 'no.txt'" in missing.observation
    assert missing.calls[0].outcome == "FileNotFoundError"
    assert env.invocations.explored == 3


def test_an_archive_of_the_guests_own_is_one_call_in_the_log(env):
    code = "import zipfile\nwith zipfile.ZipFile('a.zip', 'w') as z: z.writestr('m.txt', 'hello')"
    env.execute(code)
    turn = env.execute("archive_open('a.zip')")
    assert [(one.tool, one.found) for one in turn.calls] == [
        ("archive_open", "name: m.txt, size: 5")
    ]


@pytest.mark.parametrize(
    "told",
    ["{'call': 99, 'text': 'x', 'size': 1}", "{'call': 0, 'text': 'x', 'size': 1}", "7",
     "{'call': 'x'}", "{'text': 'x'}", "{}"],
)  # fmt: skip
def test_a_report_that_no_call_waits_for_changes_nothing(env, told):
    env.execute("peek(40)")
    before = [one.found for one in env.invocations]
    turn = env.execute(f"call_host('peek', **{{'$own': {told}}})")
    assert "ValueError" in turn.observation
    assert [one.found for one in env.invocations] == before


@pytest.mark.parametrize("before", [0, 70, 390, 690])
def test_a_secret_that_is_cut_leaves_no_half(before):
    secret = "correct-horse-battery-staple"
    context = by_text(clean=lambda text: text.replace(secret, "[secret]"))
    text = "." * before + secret + "." * 900
    node = context.add(call("llm_query", text, **arguments_of(lambda prompt: 0, (text,), {})))
    assert "correct" not in node.call + node.found
    assert len(node.found) <= 400


def test_secrets_stay_out_of_the_tree(monkeypatch):
    monkeypatch.setenv("SHIP_API_KEY", "correct-horse-battery-11")
    with atoll.REPLEnvironment(
        backend="native", context="key correct-horse-battery-11", semantic_references=False
    ) as env:
        env.execute("peek(100)")
        env.execute("grep('correct-horse-battery-11')")
        told = json.dumps(env.research.to_dict())
        assert "correct-horse" not in told
        assert "key" in told


def test_research_survives_save_and_restore_and_is_stale_over_another_context(env):
    env.execute("n = 5; hits = grep('failed'); peek(40); note('G1 it is')")
    tree, blob = env.get_state()["research"], env.save()
    options = {"backend": "native", "semantic_references": False, "state": blob}
    with atoll.REPLEnvironment(context=LOG, **options) as again:
        state = again.get_state()
        assert (state["research"], state["turns"]) == (tree, 1)
        assert state["coverage"]["scanned"] == len(LOG)
        assert again.execute("grep('well')[0]['line'] + n").result.value == 6
        assert again.research.nodes[-1].id == "G2"
        again.reset()
        assert "research" not in again.get_state()
        assert "NameError" in again.execute("n").observation
    other = atoll.aio.REPLEnvironment(context=LOG + "more", **options)
    assert {one.id: one.status for one in other.research.nodes} == {
        "G1": "stale", "P1": "stale", "N1": "stale",
    }  # fmt: skip
    assert other.coverage.scanned == 0


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda blob: blob[:-1], "cut, changed, or signed"),
        (lambda blob: blob.replace(b"it is", b"it wa"), "cut, changed, or signed"),
        (lambda blob: b"ATOLL-ENVIRONMENT\n" + os.urandom(99), "cut, changed, or signed"),
    ],
)
def test_a_damaged_saved_environment_is_refused(env, damage, said):
    env.execute("note('it is')")
    with pytest.raises(atoll.StateError, match=said):
        atoll.aio.REPLEnvironment(context=LOG, state=damage(env.save()))


def test_a_document_that_changes_under_an_environment_makes_what_was_read_stale(tmp_path):
    (tmp_path / "a.txt").write_text("version 1")
    with atoll.REPLEnvironment(
        backend="native", documents=tmp_path, semantic_references=False
    ) as env:
        env.execute("peek('a.txt', 100)\nlist_dir()\ngrep('a.txt', 'v')")
        (tmp_path / "a.txt").write_text("version 2, longer")
        assert "Progress: 1 analyzed, 0 pending, 2 stale" in env.get_state()["research"]
