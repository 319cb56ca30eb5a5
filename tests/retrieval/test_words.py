"""Words of queries: identifiers come apart, and nothing in a query is an operator."""

from __future__ import annotations

import random

import pytest

from atoll.agent.retrieval import Retriever
from atoll.agent.retrieval.words import MAX_WORDS, match_expression, query_words, split_words
from atoll.errors import ConfigError

pytestmark = pytest.mark.spec("R4.4")
TEXTS = {
    "users.txt": "getUserName reads parse_http_header of HTTPServer",
    "other.txt": "something about databases and 東京 towers",
}
HOSTILE = [
    '"', '""', '"a', "a*", "^a", "a NEAR b", "NEAR(a b)", "name:a", "{name body}: a", "-a", "NOT a",
    "a AND", "OR", "(", ")", "a) OR (b", "'; DROP TABLE units; --", "%", "\\", "\0", "a\0b", "\ud800",
    "*", "+", "a + b", '" OR "', "\x1a", "", "   ", "𝔘𝔫𝔦", "\u0301", "١٢٣", "ﬁ",
]  # fmt: skip


@pytest.fixture(scope="module")
def texts():
    with Retriever(TEXTS, mode="fts") as retriever:
        yield retriever


@pytest.mark.parametrize(
    "query",
    ["get user name", "getUserName", "get_user_name", "HTTP header", "http server", "users"],
)
def test_identifiers_are_found_by_their_parts_and_as_a_whole(texts, query):
    assert texts.search(query, kind="doc")[0].path == "users.txt"


@pytest.mark.parametrize("query", ["database", "東京", "京"])
def test_other_forms_of_a_word_are_found(texts, query):
    assert [hit.path for hit in texts.search(query, kind="doc")] == ["other.txt"]


@pytest.mark.parametrize("query", HOSTILE, ids=repr)
def test_a_hostile_query_is_only_words(texts, query):
    hits = texts.search(query, kind="doc")
    assert hits.mode_used == "fts"
    assert len(texts.search("getUserName", kind="doc")) == 1


def test_random_queries_never_break_out(texts):
    dice = random.Random(1)
    signs = "\"'*^:(){}+-,.;ab \0\n\\ORANDNOTNEAR東é"
    for _ in range(300):
        texts.search("".join(dice.choices(signs, k=dice.randrange(1, 30))), kind="doc")


def test_an_expression_has_quoted_words_and_nothing_else():
    assert match_expression('x* NEAR("y") name:z') == '"x" OR "near" OR "y" OR "name" OR "z"'
    assert match_expression("?!") == ""


def test_common_words_count_only_alone():
    assert query_words("how is the index made") == ["index", "made"]
    assert query_words("to be or not") == ["not"]
    assert query_words("to be") == ["to", "be"]


def test_a_query_has_a_bounded_number_of_words():
    assert len(query_words(" ".join(f"w{n}" for n in range(1_000)))) == MAX_WORDS


def test_splitting_keeps_the_whole_identifier_beside_its_parts():
    assert split_words("callHTTPServer x") == "call HTTP Server x callHTTPServer"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"query": "x" * 10_001}, "a query is text of at most 10,000 characters"),
        ({"query": 5}, "a query is text of at most 10,000 characters"),
        ({"query": "x", "k": 0}, "k must be a whole number from 1 to 100, not 0"),
        ({"query": "x", "k": 101}, "k must be a whole number from 1 to 100, not 101"),
        ({"query": "x", "k": True}, "k must be a whole number from 1 to 100, not True"),
        ({"query": "x", "kind": "all"}, "kind must be 'code' or 'doc', not 'all'"),
    ],
)
def test_wrong_arguments_are_told(texts, arguments, message):
    with pytest.raises(ConfigError) as caught:
        texts.search(**arguments)
    assert str(caught.value) == message
