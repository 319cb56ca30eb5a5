"""What the environment does around the sandbox: observations, secrets, coverage, clean ends."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import zipfile

import pytest

import atoll
from atoll.agent.environment.tools.documents import passage
from atoll.agent.environment.turns import render
from atoll.types import Outcome, SandboxResult

TEXT = "".join(f"entry {n}: value {n * n}\n" for n in range(3000))
KEY = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"


@pytest.fixture
def env():
    with atoll.REPLEnvironment(backend="native", context=TEXT) as found:
        yield found


def test_a_cell_without_output_says_so(env):
    assert env.execute("x = 1").observation == "(no output)"


def test_what_follows_a_cell_is_one_job_in_a_thread(env, monkeypatch):
    jobs = []
    hop = asyncio.to_thread

    async def counted(function, *args):
        jobs.append(function.__name__)
        return await hop(function, *args)

    monkeypatch.setattr("atoll.agent.environment.core.asyncio.to_thread", counted)
    env.execute("print(grep('entry 7:'))")
    assert jobs == ["_observe"]


def test_what_is_off_is_not_made(env):
    inner = env._inner
    assert inner._episodes is None
    env.execute("grep('entry 7:')")
    assert (inner._tools.registry.turn.chain, inner._tools.registry.turn.prefetcher) == (None, None)


def test_data_is_shown_in_its_shortest_form(env):
    rows = "[{'name': f'service {n}', 'errors': n} for n in range(20)]"
    shown = env.execute(rows).observation
    assert shown.startswith("[20]{name,errors}:")
    plain = atoll.REPLEnvironment(backend="native", use_toon_encoding=False)
    with plain:
        assert len(plain.execute(rows).observation) > len(shown)


def test_an_error_shows_the_models_own_lines_and_none_of_ours(env):
    told = env.execute("def f():\n    return grep('(')\nf()").observation
    assert "return grep('(')" in told
    assert "explorer.py" not in told
    assert "ConfigError: not a regular expression" in told


def test_secrets_do_not_reach_the_model_nor_the_file_nor_a_sub_call(tmp_path):
    prompts = []
    with atoll.REPLEnvironment(
        backend="native",
        spill_dir=tmp_path,
        context=TEXT,
        on_llm_query=lambda prompt: prompts.append(prompt) or "fine",
    ) as env:
        assert KEY not in env.execute(f"print('key: {KEY}')").observation
        turn = env.execute(f"print('{KEY} ' * 2000)")
        assert KEY not in turn.observation + turn.spilled.read_text()
        env.execute(f"llm_query('use {KEY}')")
    assert "[redacted" in prompts[0]
    assert KEY not in prompts[0]


def test_secrets_of_the_hosts_environment_are_known(monkeypatch):
    monkeypatch.setenv("MY_SERVICE_TOKEN", "correct-horse-battery-staple")
    with atoll.REPLEnvironment(backend="native") as env:
        told = env.execute("print('correct-horse-' + 'battery-staple')").observation
    assert "battery" not in told


def test_what_a_model_was_shown_is_told_apart_from_what_was_searched(env):
    env.execute("hits = grep('value 81$')")
    assert env.coverage.scanned_share == 1
    assert env.coverage.shown == 0, "nothing was printed"
    env.execute("print(hits)")
    line = "entry 9: value 81"
    assert env.coverage.shown == len(line)
    env.execute("print(context[:400])")
    assert 350 < env.coverage.shown < 450, "also where code cut the text by itself"


def test_what_a_sub_call_is_given_counts_as_shown():
    async def answer(prompt):
        return "ok"

    with atoll.REPLEnvironment(backend="native", context=TEXT, on_llm_query=answer) as env:
        env.execute("answer_ = llm_query('look: ' + peek(100, 5000))")
        assert 80 <= env.coverage.shown <= 100


def test_sub_calls_of_a_batch_still_run_side_by_side():
    together = threading.Barrier(16, timeout=20)
    with atoll.REPLEnvironment(
        backend="native", on_llm_query=lambda prompt: str(together.wait() >= 0)
    ) as env:
        turn = env.execute("batch_llm_query(['q'] * 16)")
    assert turn.result.value == ["True"] * 16


def test_data_as_a_context_is_searched_in_its_readable_form():
    with atoll.REPLEnvironment(backend="native", context={"pumps": [{"id": 7}]}) as env:
        assert env.execute("context['pumps'][0]['id']").result.value == 7
        assert env.execute("grep('\"id\"')").result.value[0]["text"].strip() == '"id": 7'
        assert env.execute("context_len").result.value > 10


def test_a_file_as_a_context_is_not_read_into_a_string(tmp_path):
    (tmp_path / "log").write_text(TEXT)
    with atoll.REPLEnvironment(backend="native", context=tmp_path / "log") as env:
        assert env.execute("context[:7]").result.value == "entry 0"
    with pytest.raises(atoll.ConfigError, match="is a folder: give it as documents="):
        atoll.REPLEnvironment(backend="native", context=tmp_path)


def test_a_tool_of_the_callers_is_there_and_may_not_take_a_name_of_ours():
    with atoll.REPLEnvironment(backend="native", tools={"double": lambda n: 2 * n}) as env:
        assert env.execute("double(21)").result.value == 42
    with pytest.raises(atoll.ConfigError, match="cannot be called 'grep'"):
        atoll.REPLEnvironment(backend="native", tools={"grep": print}).start()


def test_a_worker_model_summarises_long_output():
    asked = []
    with atoll.REPLEnvironment(
        backend="native", worker=lambda prompt: asked.append(prompt) or "many rows, all fine"
    ) as env:
        told = env.execute("print('row\\n' * 9000)").observation
    assert "many rows, all fine" in told
    assert "row\nrow" in asked[0]


def test_a_folder_of_documents_is_searched_by_meaning_of_words(tmp_path):
    (tmp_path / "pumps.py").write_text(
        'def restart_pump(name):\n    """Start a pump again after a failure."""\n    return name\n'
    )
    (tmp_path / "guide.md").write_text("# Valves\nTurn them.\n# Seals\nReplace a worn seal.\n")
    with atoll.REPLEnvironment(backend="native", documents=tmp_path) as env:
        assert env.execute("code_search('restart after failure')").result.value[0]["name"] == (
            "restart_pump"
        )
        found = env.execute("doc_search('worn seal')").result.value[0]
    assert (found["path"], "worn seal" in found["text"]) == ("guide.md", True)


def test_async_face_runs_the_same(tmp_path):
    async def work():
        async with atoll.aio.REPLEnvironment(backend="native", context=TEXT) as env:
            return (await env.execute("FINAL(grep('value 4$')[0]['line'])")).final.value

    assert asyncio.run(work()) == 3


def test_nothing_is_left_open_and_closing_twice_is_harmless(tmp_path):
    (tmp_path / "a.txt").write_text("text\n")
    with atoll.REPLEnvironment(backend="native", context=TEXT) as env:  # warms what stays
        env.execute("grep('x')")
    before = set(os.listdir("/proc/self/fd"))
    env = atoll.REPLEnvironment(backend="native", context=TEXT + "x", documents=tmp_path).start()
    spilled = env.execute("print('x' * 9000); peek('a.txt'); grep('value')").spilled
    assert spilled.exists()
    env.close()
    env.close()
    assert not spilled.exists()
    del env
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1, "the context may wait for the gc"


def test_closed_environments_say_so(env):
    env.close()
    with pytest.raises(atoll.SandboxClosedError, match="start\\(\\) it"):
        env.execute("1")


def test_a_timeout_keeps_what_was_printed_for_the_model(env):
    turn = env.execute("print('half'); import time; time.sleep(60)", timeout_ms=500)
    assert turn.observation.startswith("half")
    assert "TimeoutError" in turn.observation


def test_lost_variables_are_told():
    result = SandboxResult(kind=Outcome.MEMORY, error="MemoryError: limit", state_lost=True)
    assert render(result) == "MemoryError: limit\n(the variables of earlier cells are lost)"


def test_a_passage_begins_where_the_words_are():
    text = "\n".join(f"line {n}" for n in range(50)) + "\nthe worn seal\nend"
    assert passage(text, "Worn SEAL") == "line 49\nthe worn seal\nend"


@pytest.mark.spec("R4.8")
def test_the_seeds_configuration_has_its_fields_and_defaults():
    config = atoll.REPLConfig()
    assert config.timeout_seconds == 600
    assert (config.output_cap, config.max_grep_results) == (8192, 100)
    assert (config.max_output_preview, config.use_toon_encoding) == (1500, True)
    assert config.require_exploration_before_final is False
    assert config.min_exploration_calls == 1
    assert atoll.REPLConfig(timeout_seconds=2).timeout_ms == 2000
    with pytest.raises(atoll.ConfigError, match="output_cap must be positive"):
        atoll.REPLConfig(output_cap=0)


def test_a_prompt_that_fits_no_model_is_refused_before_it_is_looked_through():
    with atoll.REPLEnvironment(backend="native", on_llm_query=lambda prompt: "no") as env:
        error = env.execute("llm_query('x' * 1_000_001)").result.error
    assert "the prompt has 1,000,001 characters, of at most 1,000,000" in error


def test_a_search_that_was_cut_says_how_many_there_are(env):
    told = env.execute("hits = grep('value')\nhits").observation
    assert told.startswith(
        "3,000 found; this list holds 100 of them, and .total is the number found"
    )
    part = env.execute("hits[1:3]").observation
    assert part.startswith("3,000 found; this list holds 2 of them, and .total")
    assert part.endswith("\n3 [43:48] entry 2: value 4")
    told = env.execute("len([hit['text'] for hit in grep('value')])").observation
    assert told == (
        "100\n(grep('value') found 3,000 lines, and its list holds 100 of them: "
        ".total is the number)"
    )
    assert env.execute("print(1)").observation == "1"
    assert env.execute("grep('value').total").observation == "3000"
    assert env.execute("[len(hits), hits.total, hits.counted]").result.value == [100, 3000, True]
    assert env.execute("grep('entry 7:')").observation == "1 found:\n8 [122:130] entry 7: value 49"
    assert env.execute("grep('nowhere')").observation == "(nothing found)"
    assert env.execute("grep(r'\\bthe value of entry')").observation == (
        "(nothing found; lines with a word of it: value 3,000, entry 3,000)"
    )
    assert env.execute("grep('entry 7:, value 81, no')").observation == (
        "(nothing found; lines with a word of it: 'entry 7:' 1, 'value 81' 27)"
    )
    assert env.execute("len(grep('the value of entry'))").result.value == 0
    own = "open('own', 'w').write('a\\n' * 250)\nhits = grep('own', 'a')\n[len(hits), hits.total]"
    assert env.execute(own).result.value == [100, 250]


@pytest.mark.parametrize(
    ("code", "meant"),
    [("Final('x')", "FINAL"), ("grepp('x')", "grep"), ("find_in_text('x')", None), ("x", None)],
)
def test_a_function_that_does_not_exist_is_told_with_the_one_that_was_meant(env, code, meant):
    told = env.execute(code).observation
    assert "NameError" in told
    assert told.endswith("is not defined" if meant is None else f"(did you mean {meant}?)")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (
            "len(archive_open('a.zip'))",
            "(archive_open found 1,200 members, and its list holds 1,000",
        ),
        ("archive_open('a.zip')\nlen(archive_search('foo'))", "found at least 100 lines"),
        ("search_context('foo')[:1]", "3,000 found; this list holds 1 of them"),
        ("search_context('foo').total", "3000"),
        ("doc_search('foo', 2)", "2 that fit best:"),
        ("for n in range(250): globals()[f'v{n}'] = n\nSHOW_VARS()['...']", "older variables"),
        ("for n in range(250): globals()[f'v{n}'] = n\nFINAL_VAR('zzz')", "v249, and 2"),
    ],
)
def test_every_list_that_is_cut_says_how_many_there_are(tmp_path, code, told):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for n in range(1_200):
            archive.writestr(f"m{n}.txt", "foo\n")
    text = "".join(f"line {n} foo\n" for n in range(3_000))
    with atoll.REPLEnvironment(backend="native", context=text, documents=tmp_path) as env:
        assert told in env.execute(code).observation


def test_a_list_that_is_too_long_to_show_says_how_many_it_shows(tmp_path):
    text = "".join(f"{n} {'word ' * 40}\n" for n in range(90))
    with atoll.REPLEnvironment(backend="native", context=text) as env:
        told = env.execute("grep('word')").observation
    head, *lines = told.splitlines()
    assert head == f"90 found; {len(lines)} are shown here:"
    assert 20 < len(lines) < 50


def test_long_output_is_spilled_whole_and_what_is_lost_is_said(tmp_path):
    with atoll.REPLEnvironment(backend="native", spill_dir=tmp_path) as env:
        turn = env.execute("print('x' * 1_500_000 + 'end')")
        assert "all of it is in spill/turn_1.txt" in turn.observation
        assert len(turn.spilled.read_text()) == 1_500_003
    with atoll.REPLEnvironment(backend="native", max_output_length=20_000) as env:
        told = env.execute("print('x' * 50_000)").observation
    assert "all of it" not in told
    assert re.search(r"spill/turn_1.txt has this much; 30,\d\d\d bytes .* are lost", told)


@pytest.mark.parametrize(
    ("value", "end"),
    [
        ("'x' * 2_000_000", "x"),
        ("list(range(30_000))", "29999]"),
        ("b'x' * 200_000", "x'"),
        ("import collections\ncollections.Counter(range(30_000))", "[29999,1]]}"),
    ],
)
def test_a_large_last_value_is_spilled_whole(value, end, tmp_path):
    with atoll.REPLEnvironment(backend="native", spill_dir=tmp_path) as env:
        turn = env.execute(value)
        kept = turn.spilled.read_text()
    assert kept.endswith(end)
    assert len(kept) > 100_000


def test_a_value_that_cannot_be_had_whole_says_that_it_is_cut(env):
    made = "class Odd:\n    def __repr__(self): return 'odd ' * 9000\nOdd()"
    assert "is cut here: its repr has more than 10,000" in env.execute(made).spilled.read_text()


def test_a_slice_of_the_context_in_a_prompt_counts_as_shown_in_full():
    text = "".join(f"entry {n}: {n * n % 9973} and {n * 7919 % 104729}\n" for n in range(9000))
    asked = []
    with atoll.REPLEnvironment(
        backend="native", context=text, on_llm_query=lambda prompt: asked.append(prompt) or "x"
    ) as env:
        env.execute("llm_query('Count this: ' + context[1000:51000] + '\\nHow many?')")
        assert env.coverage.shown == 50_000
        env.execute(
            "batch_llm_query([f'{n}: ' + context[n:n + 2000] for n in range(60_000, 90_000, 2000)])"
        )
        assert env.coverage.shown == 80_000


@pytest.mark.long
def test_a_slice_of_a_context_of_a_hundred_megabytes_counts_as_shown_too():
    text = "".join(f"entry {n}: {n * n % 9973} and {n * 7919 % 104729}\n" for n in range(2_800_000))
    assert len(text) > 64 << 20
    with atoll.REPLEnvironment(
        backend="native", context=text, on_llm_query=lambda prompt: "x"
    ) as env:
        env.execute("llm_query('Count this: ' + context[60_000_000:60_050_000] + '\\nHow many?')")
        assert env.coverage.shown == 50_000


def test_documents_of_any_size_are_searched_and_hits_can_be_opened():
    line = "2031-05-02 station S12: pressure normal, flow normal\n"
    text = line * 100_000 + "the valve of Ekofisk was replaced in April\n" + line * 10_000
    assert len(text) > 5 << 20
    with atoll.REPLEnvironment(backend="native", context=text) as env:
        got = env.execute(
            "hit = doc_search('valve replaced Ekofisk')[0]\ncontext[hit['start']:hit['end']]"
        )
    assert "the valve of Ekofisk was replaced in April" in got.result.value
    small = "# One\nnothing\n\n# Two\nthe valve was replaced\n"
    with atoll.REPLEnvironment(backend="native", context=small) as env:
        got = env.execute("hit = doc_search('valve replaced')[0]\ncontext[hit['start']:hit['end']]")
    assert got.result.value == "# Two\nthe valve was replaced\n"


def test_a_password_that_is_a_word_is_not_taken_out_of_texts(monkeypatch):
    monkeypatch.setenv("POSTGRES_PASSWORD", "postgres")
    monkeypatch.setenv("ADMIN_PASSWORD", "password123")
    with atoll.REPLEnvironment(backend="native") as env:
        told = env.execute("print('a postgres server, password123 is a bad one')").observation
    assert told == "a postgres server, password123 is a bad one"
