"""Search of a context: the same lines as the slow way, whatever the text, bounded and in order."""

from __future__ import annotations

import random
import re
import sys
import threading
from itertools import pairwise

import pytest
from costs import least_cpu_seconds

from atoll.errors import ConfigError
from atoll.sandbox.context import Context
from atoll.search import backtracking, encoded, grep, patterns, trigrams
from atoll.search.grep import MAX_HITS, WIDTH
from atoll.search.index import ContextIndex

needs_re2 = pytest.mark.skipif(
    "re2" not in sys.modules and not __import__("importlib.util").util.find_spec("re2"),
    reason="google-re2 is not installed: pip install 'atoll[search]'",
)
ALPHABETS = {"ascii": "abAB x\0", "latin-1": "abAB éÉ", "two": "abA €éb", "four": "abA 😀é€"}
PATTERNS = ["a", "ab", "aB b", "é", "éa", "bbb", " ", "x", "€", "😀a", "\0"]
EXPRESSIONS = [
    "a+b", "^a", "b$", "^$", "a.b", "(ab|ba) ", "ab*A", "[aA]{2}", r"\bab", r"\Bbb", "^", "é?a", "x*", "$",
    r"a\sb", "[^a]b", "bab(?:b|A)+", "abA{0,1}b", "a{2}b|é", "(?i)aba", "^[^b]+$", "aba.*é", "[é€]a", "a b.*b",
]  # fmt: skip


@pytest.fixture
def small(monkeypatch):
    """Pieces, blocks and steps so small that a short text has edges of all of them."""
    for module, name, size in (
        (patterns, "_FAST", 512),
        (patterns, "PIECE", 256),
        (patterns.Plain, "piece", 512),
        (patterns, "_LEAST", 256),
        (grep, "BLOCK", 64),
        (grep, "_AT_ONCE", 256),
        (grep, "_JOB_BLOCKS", 3),
        (encoded, "STEP", 16),
        (patterns, "_LEAST_BYTES", 0),
        (trigrams, "BLOCK", 128),
        (trigrams, "WORTH_IT", 0),
    ):
        monkeypatch.setattr(module, name, size)


CONTEXTS: list[Context] = []


@pytest.fixture(autouse=True)
def contexts_are_let_go():
    yield
    CONTEXTS.clear()


def index_of(text):
    CONTEXTS.append(Context.from_text(text))
    return ContextIndex.of(CONTEXTS[-1])


def random_text(dice, alphabet):
    end = dice.choice(["\n", "\n", "\r\n"])
    sizes = [0, 1, 3, 9, 30, 55]
    count = dice.choice([0, 1, 2, 5, 60])
    made = ["".join(dice.choices(alphabet, k=dice.choice(sizes))) for _ in range(count)]
    return end.join(made) + dice.choice(["", end])


def naive(text, pattern, *, literal, ignore_case):
    """Line by line, with nothing of ours: line, start, end, text."""
    flags = (re.IGNORECASE if ignore_case else 0) | (re.ASCII if pattern.isascii() else 0)
    fits = re.compile(re.escape(pattern) if literal else pattern, flags).search
    made = text.split("\n")
    found, at = [], 0
    for number, line in enumerate(made if made[-1] else made[:-1], 1):
        if match := fits(line):
            found.append((number, at + match.start(), at + match.end(), line.removesuffix("\r")))
        at += len(line) + 1
    return found


def told(grep):
    return [(hit.line, hit.start, hit.end, hit.text) for hit in grep.hits]


@needs_re2
@pytest.mark.spec("R4.3")
@pytest.mark.parametrize("kind", ALPHABETS)
@pytest.mark.parametrize("seed", range(12))
def test_grep_finds_what_a_naive_search_finds(seed, kind, small):
    dice = random.Random(f"{seed} {kind}")
    text = random_text(dice, ALPHABETS[kind])
    index = index_of(text)
    for round_ in range(8):
        literal, ignore_case = round_ % 2 == 0, round_ % 4 == 3
        pattern = dice.choice(PATTERNS if literal else EXPRESSIONS)
        if round_ == 4:
            index.build()
        how = {"literal": literal, "ignore_case": ignore_case}
        expected = naive(text, pattern, **how)
        grep = index.grep(pattern, most=MAX_HITS, **how)
        assert told(grep) == expected, pattern
        assert (grep.more, grep.scanned) == (False, (0, len(text)))
        few = dice.randrange(1, 4)
        cut = index.grep(pattern, most=few, **how)
        assert told(cut) == expected[:few]
        assert cut.more == (len(expected) > few)
    index.close()


@needs_re2
@pytest.mark.parametrize("kind", ALPHABETS)
def test_offsets_are_characters_of_the_context(kind, small):
    dice = random.Random(kind)
    text = "\n".join(random_text(dice, ALPHABETS[kind] + "q") for _ in range(20))
    index = index_of(text)
    for hit in index.grep("[qa]+", most=MAX_HITS).hits:
        assert set(text[hit.start : hit.end]) <= set("qa")
        assert text[hit.at : hit.at + len(hit.text)] == hit.text
        assert text.count("\n", 0, hit.start) + 1 == hit.line == index.line_of(hit.start)
    for number, line in enumerate(text.split("\n")[:-1], 1):
        assert text[index.line_start(number) :].split("\n", 1)[0] == line
    assert index.line_start(10**9) == len(text)
    assert index.text(3, 17) == text[3:17]
    assert index.text(len(text) - 2, 10**12) == text[-2:]


@pytest.mark.parametrize("wide", ["", "é", "€", "😀"])
def test_a_needle_over_the_edge_of_every_real_block_is_found(wide, monkeypatch):
    monkeypatch.setattr(trigrams, "WORTH_IT", 0)
    unit = "some words of a line, as there are many of them\n"
    parts = [unit * (edge // len(unit)) for edge in (grep.BLOCK, trigrams.BLOCK, 1 << 20)]
    text = (wide + "needle in the hay\n").join([*parts, wide])
    text += "x" * (3 * (1 << 19) - len(text) - 3) + "needle"
    index = index_of(text)
    expected = [match.start() for match in re.finditer("needle", text)]
    assert len(expected) == 4
    for _ in range(2):
        assert [hit.start for hit in index.grep("needle").hits] == expected
        assert index.grep("needle").hits[-1].line == text.count("\n") + 1
        assert list(index.places("needle")) == expected
        index.build()
    index.close()


def test_text_at_trigram_edges_is_found_at_every_offset(small):
    """With the index, a block is skipped only if the text cannot begin in it."""
    for at in range(110, 140):
        text = "-" * at + "needle" + "-" * 300
        index = index_of(text)
        index.build()
        assert index.find("needle") == at
        assert [hit.start for hit in index.grep("needle").hits] == [at]
        index.close()


@needs_re2
def test_two_required_texts_in_two_blocks_are_one_line(monkeypatch):
    monkeypatch.setattr(trigrams, "BLOCK", 128)
    monkeypatch.setattr(trigrams, "WORTH_IT", 0)
    text = "x" * 100 + "first" + "y" * 180 + "second" + "z" * 200 + "\n"
    index = index_of(text)
    index.build()
    assert len(index.grep("first.*second").hits) == 1
    index.close()


def test_a_context_without_line_ends_has_many_hits():
    text = ("." * 5_000 + "needle") * 600
    grep = index_of(text).grep("needle", most=5_000)
    assert [hit.start for hit in grep.hits] == [m.start() for m in re.finditer("needle", text)]
    assert {hit.line for hit in grep.hits} == {1}
    assert all("needle" in hit.text and len(hit.text) <= WIDTH for hit in grep.hits)


@needs_re2
def test_matches_over_the_edges_of_pieces_of_a_long_line_are_found_once():
    text = "-" * ((1 << 20) - 20) + "a" * 40 + "-" * ((1 << 21) + 5) + "aaa"
    hits = index_of(text).grep("a+").hits
    assert hits[0].start == (1 << 20) - 20
    assert [(one.start < other.start) for one, other in pairwise(hits)] == [True] * (len(hits) - 1)
    assert (hits[-1].start, hits[-1].end) == (len(text) - 3, len(text))


def test_a_long_line_is_cut_around_the_match():
    text = "b" * 1_000 + "needle" + "c" * 1_000
    (hit,) = index_of(text).grep("needle").hits
    assert len(hit.text) == WIDTH
    assert text[hit.at : hit.at + WIDTH] == hit.text
    assert hit.text.index("needle") == hit.start - hit.at


@needs_re2
def test_start_and_end_bound_the_search_without_making_lines():
    index = index_of("abc\nabc\nabc\n")
    assert [hit.start for hit in index.grep("abc", start=1).hits] == [4, 8]
    assert [hit.start for hit in index.grep("abc", start=4, end=10).hits] == [4]
    assert index.grep("^bc", start=1).hits == ()
    assert index.grep("ab$", end=2).hits == ()
    assert index.grep("a", start=4, end=10).scanned == (4, 10)


def test_lone_halves_of_characters_keep_their_offsets():
    text = "x\ud83d\ude00y\n\ude00needle \ud83d" + "€" * 20_000 + "\ud83d\ude00needle"
    index = index_of(text)
    assert index.text(0, 4) == text[:4]
    assert [hit.start for hit in index.grep("needle").hits] == [
        match.start() for match in re.finditer("needle", text)
    ]


@pytest.mark.spec("R4.20")
@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(?=a)b", "look-around is not supported"),
        ("(?<!a)b", "look-around is not supported"),
        (r"(a)\1", "backreferences are not supported"),
        ("(", "not a regular expression: missing"),
        ("((a{100}){100}){100}", "not a regular expression"),
        ("(ab|cd|ef){900}", "too large: repeat less"),
        (r"a\z", r"use \^ and \$"),
        ("", "empty"),
        ("a\nb", "line end"),
        ("a" * 10_001, "10,001 characters, at most 10,000"),
        (b"a", "must be text, not bytes"),
    ],
)
@needs_re2
def test_a_pattern_that_cannot_be_is_refused_in_words_to_act_on(pattern, words):
    with pytest.raises(ConfigError, match=words):
        index_of("text").grep(pattern)


@pytest.mark.parametrize("most", [0, -1, MAX_HITS + 1, True, 1.0, "1"])
def test_a_number_of_hits_beyond_the_limit_is_refused(most):
    with pytest.raises(ConfigError, match="a whole number from 1 to 10,000"):
        index_of("text").grep("t", most=most)


@pytest.mark.parametrize("offset", [-1, 1.5, "0", True, None])
def test_an_offset_that_is_none_is_refused(offset):
    with pytest.raises(ConfigError, match=r"an offset is .*: it must be a whole number from 0 on"):
        index_of("text").grep("t", start=offset)


@needs_re2
@pytest.mark.spec("R4.20")
@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "(.*)*x",
        "(a|aa)+$",
        "(a*)*b$",
        "(a?){60}a{60}c",
        "(" * 1_000 + "a*" + ")*" * 1_000 + "c",
    ],
)
def test_a_catastrophic_pattern_costs_no_more_than_a_multiple_of_a_plain_one(pattern):
    index = index_of("a" * 300_000 + "b\n" + "a" * 300_000)
    plain = least_cpu_seconds(lambda: index.grep("a[bB]$"))
    assert least_cpu_seconds(lambda: index.grep(pattern)) < 200 * (plain + 0.005)


@needs_re2
@pytest.mark.spec("R4.20")
def test_a_search_ends_when_its_time_is_up_and_says_how_far_it_came():
    text = "nothing of any use here\n" * 200_000
    grep = index_of(text).grep("[0-9]+x", seconds=0.0)
    assert grep.more
    assert grep.hits == ()
    assert grep.scanned[1] < len(text)


@needs_re2
@pytest.mark.spec("R4.20")
@pytest.mark.parametrize("pattern", ["[ab]*a[ab]{300}[cd]", "[ab]*a[ab]{300}c"])
def test_an_expression_that_is_slow_a_byte_is_still_ended_in_time(pattern, monkeypatch):
    """Its states are too many to keep, so each byte costs as much as it has instructions."""
    monkeypatch.setattr(patterns, "PIECE", 1 << 14)
    monkeypatch.setattr(patterns, "_LEAST", 1 << 10)
    text = "".join(random.Random(1).choices("ab", k=1 << 20)) + "\nccdd\n" * 100
    grep = index_of(text).grep(pattern, seconds=0.05)
    assert grep.more
    assert grep.scanned[1] < len(text) // 2


@needs_re2
def test_hits_before_the_time_was_up_are_kept():
    text = "a line\n" * 100_000
    grep = index_of(text).grep("^a", seconds=0.0, most=MAX_HITS)
    assert len(grep.hits) <= 1
    assert grep.more


@needs_re2
def test_many_threads_find_the_same_at_once():
    text = "".join(f"line {number} of some\n" for number in range(60_000))
    index = index_of(text)
    answers = []

    def search(number):
        answers.append((number, told(index.grep(f"^line {number}[0-9]{{2}} of"))))

    threads = [threading.Thread(target=search, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    assert all(len(hits) == 100 and hits[0][0] == 100 * n + 1 for n, hits in answers)


def test_without_the_extra_texts_are_found_and_so_are_expressions(monkeypatch):
    monkeypatch.setitem(sys.modules, "re2", None)
    monkeypatch.setattr(grep, "find_spec", lambda name: None)
    monkeypatch.setattr(trigrams, "find_spec", lambda name: None)
    text = "some words of a line\n" * 100_000 + "needle\n"
    index = index_of(text)
    for _ in range(2):
        (hit,) = index.grep("needle").hits
        assert (hit.line, hit.start) == (100_001, len(text) - 7)
        index.build()
    (hit,) = index.grep("needle|pin").hits
    assert (hit.line, hit.text) == (100_001, "needle")


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(a+)+[yz]"])
def test_without_the_extra_a_catastrophic_pattern_is_stopped_and_says_what_to_do(
    pattern, monkeypatch
):
    monkeypatch.setitem(sys.modules, "re2", None)
    monkeypatch.setattr(backtracking, "SECONDS", 1.0)
    index = index_of("a" * 5_000 + "b\n")
    with pytest.raises(ConfigError, match=r"was stopped: .* google-re2 on the host"):
        index.grep(pattern)
    assert [hit.line for hit in index.grep("a+b").hits] == [1]


def test_without_the_extra_the_same_lines_are_found(monkeypatch):
    text = "Ünïcode lines é1\nfail 7\nnothing\n\nFAIL é2 fail\n" * 500
    patterns = ["fail.\\d", "é\\d", "[^x]+$", "^\\s*$", "\\bfail\\b", "f|n", "l[^z]*n", "e{2,}"]
    options = [{}, {"ignore_case": True}]
    index = index_of(text)
    expected = [index.grep(one, **more).hits for one in patterns for more in options]
    monkeypatch.setitem(sys.modules, "re2", None)
    index = index_of(text)
    assert [index.grep(one, **more).hits for one in patterns for more in options] == expected


def test_of_very_many_hits_no_more_is_searched_than_is_needed():
    text = "a line with the word in it\n" * 1_000_000
    grep = index_of(text).grep("word", most=100)
    assert len(grep.hits) == 100
    assert grep.scanned[1] == grep.hits[-1].end < 3_000


def test_a_small_context_is_searched_without_a_thread(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a thread was started")

    monkeypatch.setattr(grep, "Thread", refuse)
    assert index_of("one\ntwo\nthree\n" * 100).grep("two").total == 100


def test_pieces_cover_their_parts_in_order():
    memory = ContextIndex.of(context := Context.from_text("ab\n" * 100))._open.memory
    made = list(grep.cut(memory, [(0, 300)], 16))
    assert made[0][0] == 0
    assert made[-1][1] == 300
    assert all(one[1] == other[0] for one, other in pairwise(made))
    assert all(end % 3 == 0 for _, end in made)
    context.close()


def test_no_expression_is_kept_when_nobody_uses_it():
    import re2

    index = ContextIndex.of(Context.from_text("abc\n"))
    for number in range(5):
        index.grep(f"[a-c]{{{number + 1}}}")
    assert re2._Regexp._make.cache_info().currsize == 0
