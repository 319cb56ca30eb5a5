"""A model's environment is the same in every backend: looking, answering, spilling, refusing."""

from __future__ import annotations

import io
import zipfile

import pytest

import atoll
from atoll import Capability
from atoll.backends import registry

pytestmark = pytest.mark.needs(Capability.BRIDGE)
LOG = "".join(f"line {n}: all is well\n" for n in range(1, 2001))
LOG = LOG.replace("line 1234: all is well", "line 1234: the pump failed: code 77")
AT = LOG.index("the pump failed")


@pytest.fixture
def open_env(backend):
    opened = []

    def open_one(**options):
        if backend == "wasm":
            options["policy"] = atoll.ExecutionPolicy(fuel_budget=None)
        env = atoll.REPLEnvironment(backend=backend, **{"context": LOG, **options})
        opened.append(env)
        return env.start()

    yield open_one
    for env in opened:
        env.close()


@pytest.mark.spec("R4.3")
def test_a_model_looks_and_answers_with_evidence(open_env):
    env = open_env()
    assert env.execute("peek(7)").observation == "line 1:"
    assert env.execute("peek(4, -5)").observation == "well"
    assert env.execute("(context_len, context_len() == len(context))").result.value == (
        len(LOG),
        True,
    )
    found = env.execute("hits = grep('pump f[a-z]+'); hits").result.value
    assert found[0]["line"] == 1234
    assert LOG[found[0]["start"] : found[0]["end"]] == "pump failed"
    turn = env.execute("FINAL('code ' + '77', quotes=['the pump failed'])\nprint('never')")
    assert turn.result.success
    assert "never" not in turn.observation
    assert (turn.final.how, turn.final.text) == ("FINAL", "code 77")
    assert [(one.found, one.start) for one in turn.final.evidence] == [(True, AT)]
    assert turn.final.coverage.scanned_share == 1
    assert env.execute("hits[0]['line']").result.value == 1234, "the session lives on"


@pytest.mark.spec("R4.7")
def test_tools_are_called_by_name_and_with_named_arguments(open_env, backend):
    env = open_env()
    assert env.execute("tool_call('peek', n=7)").result.value == "line 1:"
    assert env.execute("CALL('peek', 4, start=5)").result.value == LOG[5:9]
    for code in ("TOOL('grep', pattern='pump')", "grep(pattern='pump')", "CALL('grep', 'pump')"):
        assert env.execute(code).result.value[0]["line"] == 1234
    assert "did you mean 'grep'" in env.execute("tool_call('gerp', pattern='x')").observation
    written = env.execute("file_write_safe('notes.txt', 'x')['bytes']").result
    if backend == "restricted":
        assert "checked code only" in written.error
    else:
        assert written.value == 1
    shell = env.execute("run_shell('echo hi')['output']").result
    if Capability.SUBPROCESS in registry.load(backend).capabilities:
        assert shell.value == "hi\n"
    else:
        assert "run_shell cannot run here" in shell.error


@pytest.mark.spec("R4.3")
def test_what_is_no_answer_is_refused_in_words(open_env):
    env = open_env()
    assert (
        "Call it, and give what it returns: FINAL(work(...))"
        in env.execute("def work(): return 1\nFINAL(work)").result.error
    )
    missing = env.execute("total = 3\nFINAL_VAR('totall')").result.error
    assert "no variable 'totall'" in missing
    assert "total" in missing
    assert env.final is None
    assert env.execute("FINAL_VAR('total')").final.value == 3


@pytest.mark.spec("R4.3")
def test_the_other_conventions_of_answering(open_env):
    env = open_env()
    turn = env.execute("answer['content'] = 'by dict'\nanswer['ready'] = True")
    assert (turn.final.how, turn.final.text) == ("answer", "by dict")
    typed = open_env(submit_fields={"code": int, "why": str})
    assert "call SUBMIT(code=..., why=...)" in typed.execute("SUBMIT(code=77)").result.error
    assert "why must be a text" in typed.execute("SUBMIT(code=77, why=5)").result.error
    assert typed.execute("SUBMIT(code=77, why='pump')").final.value == {"code": 77, "why": "pump"}


@pytest.mark.spec("R4.8")
def test_a_model_that_has_not_looked_may_not_answer(open_env):
    env = open_env(require_exploration_before_final=True, min_exploration_calls=2)
    assert "look before you answer: 2 call(s)" in env.execute("FINAL('guess')").result.error
    env.execute("peek(1)")
    assert "there were 1" in env.execute("FINAL('guess')").result.error
    noted = env.execute("answer['content'] = 'x'; answer['ready'] = True")
    assert "look before you answer" in noted.observation
    assert env.execute("grep('pump'); FINAL('77')").final.text == "77"


@pytest.mark.spec("R4.12")
def test_long_output_is_spilled_and_can_be_looked_into(open_env, tmp_path):
    env = open_env(spill_dir=tmp_path, session_id="s1")
    turn = env.execute("for n in range(5000): print('row', n, 'x' * (n == 3210))")
    assert len(turn.observation) <= 1500
    assert "row 0" in turn.observation
    assert "row 4999" in turn.observation
    assert turn.spilled == tmp_path / "s1" / "turn_1.txt"
    assert turn.spilled.read_text().splitlines()[3210] == "row 3210 x"
    assert env.execute("peek('spill/turn_1.txt', 5)").observation == "row 0"
    assert env.execute("grep('spill/turn_1.txt', 'x$')").result.value[0]["line"] == 3211


@pytest.mark.spec("R4.3")
def test_documents_are_seen_and_nothing_beside_them(open_env, tmp_path):
    (tmp_path / "secret.txt").write_text("PWNED")
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "notes.md").write_text("# Pump\nreplace the seal\n")
    (docs / "link").symlink_to(tmp_path / "secret.txt")
    env = open_env(documents=docs)
    assert "notes.md" in env.execute("list_dir()").result.value
    assert env.execute("peek('notes.md', 6)").observation == "# Pump"
    assert env.execute("grep('notes.md', 'seal')").result.value[0]["line"] == 2
    for name in (
        "../secret.txt",
        "link",
        str(tmp_path / "secret.txt"),
        "notes.md/../../secret.txt",
    ):
        turn = env.execute(f"peek({name!r}, 9)")
        assert turn.result.error, name
        assert "PWNED" not in turn.observation


@pytest.mark.spec("R4.3")
@pytest.mark.needs(Capability.WORKSPACE)
def test_the_guests_own_files_are_looked_into_too(open_env):
    env = open_env()
    env.execute("f = open('own.txt', 'w'); f.write('one\\ntwo\\n'); f.close()")
    assert env.execute("peek('own.txt', 3, 4)").observation == "two"
    assert env.execute("grep('own.txt', 'T', True)").result.value == [
        {"line": 2, "start": 4, "end": 5, "text": "two"}
    ]
    assert "own.txt" in env.execute("list_dir()").result.value


@pytest.mark.spec("R4.5")
@pytest.mark.needs(Capability.WORKSPACE)
def test_an_archive_of_the_guests_own_or_of_the_documents(open_env, tmp_path):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a/report.txt", "first\nthe seal broke\n")
    (tmp_path / "host.zip").write_bytes(packed.getvalue())
    env = open_env(documents=tmp_path)
    assert env.execute("archive_open('host.zip')[0]['name']").result.value == "a/report.txt"
    assert env.execute("archive_file('a/report.txt')").result.value.startswith("first")
    env.execute(f"f = open('own.zip', 'wb'); f.write({packed.getvalue()!r}); f.close()")
    env.execute("archive_open('own.zip')")
    assert env.execute("archive_search('seal')").result.value == [
        {"path": "a/report.txt", "line": 2, "text": "the seal broke"}
    ]


def test_a_backend_without_files_opens_none_for_its_guest(backend, open_env, tmp_path):
    if Capability.WORKSPACE in registry.load(backend).capabilities:
        pytest.skip(f"backend {backend} has files of its own")
    (tmp_path / "secret.txt").write_text("PWNED")
    env = open_env()
    for call in ("peek({0!r}, 5)", "grep({0!r}, 'P')", "archive_open({0!r})"):
        turn = env.execute(call.format(str(tmp_path / "secret.txt")))
        assert "there is no document" in turn.result.error
        assert "PWNED" not in turn.observation
    assert env.execute(f"list_dir({str(tmp_path)!r})").result.error.startswith("FileNotFoundError")


@pytest.mark.spec("R4.18")
def test_code_with_typographic_characters_runs(open_env):
    turn = open_env().execute("angle = 47°\nname = “°C”\nprint(angle × 2, name)")
    assert turn.observation == "94 °C"


@pytest.mark.spec("R4.13")
def test_a_hostile_guest_gets_errors_and_the_host_lives(open_env):
    env = open_env()
    for call in (
        "call_host('peek', 'many')",
        "call_host('peek', -1)",
        "call_host('peek', 10**30, 10**30, 7)",
        "call_host('grep', None)",
        "call_host('grep', 'x' * 100_000)",
        "call_host('grep', '(')",
        "call_host('list_dir', 5)",
        "call_host('archive_file', {})",
        "call_host('archive_open', 'x', b'no archive')",
        "call_host('code_search', '')",
        "call_host('web_fetch', 'http://127.0.0.1/')",
        "call_host('FINAL', {}, [], 'x', 5)",
        "call_host('FINAL', 'FINAL', 'x', [5])",
        "call_host('__class__')",
        "call_host('take_variable', {})",
    ):
        caught = f"try:\n    {call}\nexcept HostCallError:\n    print('caught')"
        assert env.execute(caught).result.stdout == "caught\n", call
    assert env.final is None
    assert env.execute("grep('pump')").result.value[0]["line"] == 1234
