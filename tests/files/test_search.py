"""Search on the host: the same lines as the slow way, whatever the tree, bounded and in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import resource
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

import atoll
from atoll.errors import ConfigError
from atoll.files import searcher
from atoll.files.direct import FolderFiles
from atoll.files.folder import OpenFolders
from atoll.files.searcher import Searcher
from atoll.guest.shared import texts
from atoll.guest.shared.local_files import LocalFiles
from atoll.guest.shared.search import search as slow_search
from atoll.search import backtracking, blocks, patterns
from atoll.search.patterns import Pattern, required_runs

re2 = pytest.importorskip("re2", reason="google-re2 is not installed: pip install 'atoll[search]'")
PLAIN = {"glob": None, "regex": False, "ignore_case": False, "max_results": 1000}
REGEX = {**PLAIN, "regex": True}


@pytest.fixture
def grep(tmp_path):
    fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    yield lambda pattern, path="/", **options: Searcher()(
        OpenFolders({"/app": fd}), pattern, path, **{**PLAIN, **options}
    )
    os.close(fd)


def naive(folder, pattern, *, regex, ignore_case, longest):
    """Line by line, with nothing of ours: [path, line, text] of every file, in no order."""
    flags = (re.IGNORECASE if ignore_case else 0) | (re.ASCII if pattern.isascii() else 0)
    fits = re.compile(pattern if regex else re.escape(pattern), flags).search
    found = []
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            data = Path(path).read_bytes()
            lines = [] if b"\0" in data[:8192] else data.split(b"\n")
            for number, line in enumerate(lines if lines[-1:] != [b""] else lines[:-1], 1):
                text = line[:longest].decode()
                if fits(text):
                    found.append([os.path.relpath(path, folder), number, text.rstrip("\r")])
    return found


def random_text(dice):
    ends = dice.choice(["\n", "\r\n"])
    sizes = [0, 1, 3, 9, dice.randrange(50)]
    lines = [
        "".join(dice.choices("abAB é", k=dice.choice(sizes)))
        + "".join(dice.choices("abAB ", k=dice.choice([0, 0, 90, 200])))
        for _ in range(dice.choice([0, 1, 2, 5, 40]))
    ]
    text = ends.join(lines) + dice.choice(["", ends])
    if dice.random() < 0.15:
        text = text[:3] + "\0" + text[3:]
    return text.encode()


def random_tree(dice, folder):
    for number in range(dice.randrange(12)):
        depth = dice.randrange(4)
        path = folder.joinpath(*(dice.choice("xyz") for _ in range(depth)), f"f{number}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random_text(dice))


PATTERNS = ["a", "ab", "aB b", "é", "éa", "bbbbb", " "]
EXPRESSIONS = [
    "a+b", "^a", "b$", "^$", "a.b", "(ab|ba) ", "ab*A", "[aA]{2}", r"aab\b", r"\Bbb", "^", "é?a", "x*",
    r"a\sb", "[^a]b", "baa(?:b|A)+", "abA{0,1}b", r"a{2}b|é", "aab+A?", "(?i)aba", r"^[^b]+$", "abb.*é",
]  # fmt: skip


@pytest.mark.spec("R3.8")
@pytest.mark.parametrize("seed", range(60))
def test_both_searches_find_what_a_naive_one_finds(seed, tmp_path, grep, monkeypatch):
    dice = random.Random(seed)
    block, longest = dice.choice([(8, 100), (32, 128), (100, 100), (64, 1 << 24), (1 << 20,) * 2])
    monkeypatch.setattr(blocks, "BLOCK", block)
    monkeypatch.setattr(texts, "LONGEST_LINE", longest)
    if seed % 2:  # two threads search each file that is larger than the buffer
        pytest.importorskip("numpy")
        monkeypatch.setattr(blocks, "VERY_LARGE", 16)
        monkeypatch.setattr(blocks, "BLOCK_OF_TWO", block)
    random_tree(dice, tmp_path)
    for regex, ignore_case in ((False, False), (False, True), (True, False), (True, True)):
        pattern = dice.choice(EXPRESSIONS if regex else PATTERNS)
        options = {"regex": regex, "ignore_case": ignore_case}
        expected = naive(tmp_path, pattern, longest=longest, **options)
        fast = grep(pattern, **options)
        slow = slow_search(LocalFiles(str(tmp_path)), pattern, "/", **{**PLAIN, **options})
        assert fast == slow, pattern
        assert sorted(fast["matches"]) == sorted(expected), pattern
        few = dice.randrange(4)
        cut = grep(pattern, **options, max_results=few)
        assert cut["matches"] == fast["matches"][:few]
        assert cut["truncated"] or len(expected) <= few


def test_lines_at_the_edges_of_real_blocks_are_found_with_their_numbers(tmp_path, grep):
    size = blocks.BLOCK
    line = b"x" * 99 + b"\n"
    data = bytearray(line * (3 * size // 100 + 10))
    for edge in (size, 2 * size, 3 * size):
        data[edge - 3 : edge + 3] = b"needle"
    (tmp_path / "large").write_bytes(data)
    hits = grep("needle")["matches"]
    expected = [
        number for number, text in enumerate(bytes(data).split(b"\n"), 1) if b"needle" in text
    ]
    assert len(expected) == 3
    assert [number for _, number, _ in hits] == expected
    assert grep("^x+needle", regex=True)["matches"] == hits


def test_of_a_line_too_long_the_head_is_searched_and_it_is_said(tmp_path, grep, monkeypatch):
    monkeypatch.setattr(texts, "LONGEST_LINE", 2 * blocks.BLOCK)
    line = b"head" + b"x" * (5 * blocks.BLOCK) + b"tail\n"
    (tmp_path / "a").write_bytes(b"first\n" + line + b"last tail")
    assert [hit[1] for hit in grep("head")["matches"]] == [2]
    assert grep("tail") == {"matches": [["a", 3, "last tail"]], "truncated": True}


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(?=a)b", "look-around is not supported"),
        ("(?<!a)b", "look-around is not supported"),
        (r"(a)\1", "backreferences are not supported"),
        ("(", "not a regular expression: missing"),
        ("((a{100}){100}){100}", "not a regular expression"),
        (r"a\z", r"use \^ and \$"),
        ("", "empty"),
        ("a\nb", "line end"),
    ],
)
def test_a_pattern_that_cannot_be_is_refused_in_words_to_act_on(grep, pattern, words):
    with pytest.raises(ConfigError, match=words):
        grep(pattern, regex=True)


def test_without_re2_the_standard_library_searches(tmp_path, grep, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "re2", None)
    (tmp_path / "a").write_text("Some text")
    assert grep("some TEXT", ignore_case=True)["matches"] == [["a", 1, "Some text"]]
    (tmp_path / "b").write_text("É\nother\nSome other\n" * 3)
    found = grep("S.me (t|o)", regex=True)["matches"]
    assert sorted(found) == [["a", 1, "Some text"], *(["b", n, "Some other"] for n in (3, 6, 9))]
    assert [one[1] for one in grep("é", ignore_case=True)["matches"]] == [1, 4, 7]
    with pytest.raises(ConfigError, match="not a regular expression: missing"):
        grep("S(me", regex=True)


@pytest.mark.long
def test_without_re2_a_catastrophic_pattern_is_stopped(tmp_path, grep, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "re2", None)
    monkeypatch.setattr(backtracking, "SECONDS", 1.0)
    (tmp_path / "a").write_text("a" * 5_000 + "b\n")
    with pytest.raises(ConfigError, match=r"was stopped: .* google-re2 on the host"):
        grep("(a+)+$", regex=True)


def test_a_catastrophic_pattern_takes_time_like_any_other(tmp_path, grep):
    """With backtracking, 60 letters alone would outlast the universe: that it ends is the test."""
    (tmp_path / "a").write_text("a" * 1_000_000 + "b\n")
    assert grep("(a+)+$", regex=True)["matches"] == []
    assert grep("(a|aa)+$", regex=True)["matches"] == []


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("foobar", "foobar"),
        ("foo.*barbaz", "barbaz"),
        ("(foo)?barr", "barr"),
        ("abc?defg", "defg"),
        ("abcd+efg", "abcd"),
        ("abcd{0,2}", "abc"),
        (r"a\.b\(c", "a.b(c"),
        ("[abc]defg[^]x]hij", "defg"),
        ("foo|bar", ""),
        ("(?i)foobar", ""),
        (r"\x41bcd", ""),
        (r"\Qa+b\E", ""),
        ("abcd{2", ""),
        ("ab", "ab"),
        ("naïve+", "naïve"),
    ],
)
def test_the_required_text_of_an_expression(pattern, text):
    assert max(required_runs(pattern), key=len, default="") == text


def test_the_required_text_is_in_every_match(tmp_path):
    dice, parts = random.Random(5), ["a", "b", "é", ".", "(ab|b)", "[ab]", r"\.", "(?:aab)", "aba"]
    seen = 0
    for _ in range(5_000):
        pattern = "".join(
            dice.choice(parts) + dice.choice(["", "", "", "?", "*", "+", "{2}", "{0,1}", "+?"])
            for _ in range(dice.randrange(1, 8))
        )
        text = "".join(dice.choices("abé.", k=30))
        match = re.search(pattern, text)
        if match:
            runs = required_runs(pattern)
            seen += bool(runs)
            assert all(run in match.group() for run in runs), pattern
    assert seen > 20


def test_a_required_text_that_does_not_help_is_given_up(tmp_path, grep):
    lines = ["needle 1"] * 5000 + ["needle x"]
    (tmp_path / "a").write_text("\n".join(lines))
    assert grep(r"needle [a-z]", regex=True)["matches"] == [["a", 5001, "needle x"]]


@pytest.mark.parametrize("seed", range(20))
def test_a_text_is_found_at_every_place_however_common_its_bytes_are(seed, monkeypatch):
    monkeypatch.setattr(patterns, "_MISSES", random.Random(seed).choice((1, 8, 1 << 13)))
    monkeypatch.setattr(patterns, "_LEAST_BYTES", random.Random(seed).choice((1, 100)))
    dice = random.Random(seed)
    needle = "".join(dice.choices("ab_", k=dice.randrange(1, 5)))
    find_in = Pattern(needle, regex=False, ignore_case=False).within
    for _ in range(10):
        block = bytearray("".join(dice.choices("aaabbc_", k=300)), "ascii")
        used = dice.randrange(1, 300)
        find = find_in(block, used)
        for at in range(used):
            assert find(at) == block.find(needle.encode(), at, used)


def test_order_is_that_of_names_and_the_cut_is_the_same_every_time(tmp_path, grep):
    for number in range(300):
        (tmp_path / f"{number:03}").write_text("x\n" * (number % 5))
    everything = grep("x", max_results=10_000)["matches"]
    assert everything == sorted(everything)
    for most in (0, 1, 57, 599, 600):
        answer = grep("x", max_results=most)
        assert (answer["matches"], answer["truncated"]) == (everything[:most], most < 600)


@pytest.mark.long
def test_a_hundred_thousand_files_hold_few_descriptors(in_memory):
    for folder in range(100):
        (in_memory / str(folder)).mkdir()
        where = os.open(in_memory / str(folder), os.O_RDONLY)
        for number in range(1000):
            os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY, dir_fd=where))
        os.close(where)
    (in_memory / "99" / "999").write_text("needle")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = os.open(in_memory, os.O_PATH)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(open_descriptors()) + 90, hard))
    try:
        answer = Searcher()(OpenFolders({"/app": top}), "needle", "/", **PLAIN)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(top)
    assert answer["matches"] == [["99/999", 1, "needle"]]


@pytest.fixture
def in_memory():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_want_of_descriptors_is_an_error_and_not_fewer_results(tmp_path, grep):
    for number in range(40):
        (tmp_path / str(number)).write_text("needle")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = open_descriptors()
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before) + 2, hard))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/", os.O_PATH))
        os.close(taken.pop())
        with pytest.raises(OSError, match="Too many open files"):
            grep("needle")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)
    assert open_descriptors() <= before


def open_descriptors():
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(name))
        except OSError:
            continue
        found.add(int(name))
    return found


def test_what_is_no_file_when_it_is_open_is_not_read(tmp_path, grep, monkeypatch):
    """A FIFO, a link or a device may come in a file's place after the folder was listed."""
    (tmp_path.parent / "secret").write_text("needle")
    (tmp_path / "link").symlink_to(tmp_path.parent / "secret")
    (tmp_path / "folder").symlink_to(tmp_path.parent)
    os.mkfifo(tmp_path / "fifo")
    listed = [("fifo", False), ("folder", True), ("gone", False), ("link", False)]
    monkeypatch.setattr(searcher, "_entries", lambda _folder: listed)
    assert grep("needle")["matches"] == []


def test_links_that_are_swapped_in_during_a_search_never_lead_out(tmp_path, grep):
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (outside / "a").write_text("needle")
    inside, done = tmp_path / "place", threading.Event()
    (tmp_path / "kept").mkdir()
    for number in range(50):
        (tmp_path / "kept" / f"{number}").write_text("nothing")

    def swap():
        while not done.is_set():
            inside.mkdir()
            (inside / "a").write_text("nothing")
            os.unlink(inside / "a")
            inside.rmdir()
            inside.symlink_to(outside)
            inside.unlink()

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        assert [grep("needle")["matches"] for _ in range(200)] == [[]] * 200
    finally:
        done.set()
        swapper.join()


def test_a_file_that_grows_is_read_as_far_as_it_went(tmp_path, grep):
    path, done = tmp_path / "log", threading.Event()
    path.write_bytes(b"line\n" * 400_000)

    def grow():
        with open(path, "ab", buffering=0) as file:
            while not done.is_set() and file.tell() < 64 << 20:
                file.write(b"line\n" * 10_000)

    grower = threading.Thread(target=grow)
    grower.start()
    try:
        for _ in range(5):
            assert grep("needle")["matches"] == []
    finally:
        done.set()
        grower.join()


def test_sparse_and_cut_files_do_no_harm(tmp_path, grep, monkeypatch):
    (tmp_path / "cut").write_bytes(b"needle\n" * (blocks.BLOCK // 2))
    with open(tmp_path / "sparse", "wb") as file:
        file.write(b"needle\n" * 2000)
        file.truncate(texts.MAX_FILE_BYTES + 1)
    plain_read = blocks.SearchBuffer.read

    def read(search, *args):
        os.truncate(tmp_path / "cut", 7)
        return plain_read(search, *args)

    monkeypatch.setattr(blocks.SearchBuffer, "read", read)
    assert grep("needle")["matches"] == [["cut", 1, "needle"]]


async def test_a_cancelled_search_stops_soon_and_keeps_no_descriptor(tmp_path, monkeypatch):
    (tmp_path / "a0").write_bytes(b"some line of text\n" * 1_000_000)
    for number in range(1, 20):
        os.link(tmp_path / "a0", tmp_path / f"a{number}")
    reads = []
    plain_read = blocks.SearchBuffer.read
    monkeypatch.setattr(blocks.SearchBuffer, "read", lambda *a: reads.append(1) or plain_read(*a))

    async def folders(_changing):
        return {"/app": os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)}

    files = FolderFiles(folders)
    await files.grep("nowhere", "a0")
    of_one_file = len(reads)
    before = open_descriptors()
    search = asyncio.create_task(files.grep("nowhere"))
    await asyncio.to_thread(until, lambda: len(reads) > of_one_file)
    search.cancel()
    with pytest.raises(asyncio.CancelledError):
        await search
    await asyncio.to_thread(until, lambda: open_descriptors() == before)
    assert len(reads) < 11 * of_one_file  # to the end it would be twenty more


def until(condition):
    while not condition():
        time.sleep(0.001)


def test_without_re2_a_sandbox_s_files_are_searched_as_their_owner(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "re2", None)
    with atoll.create_sandbox(backend="native") as box:
        box.execute("open('notes', 'w').write('one\\nfail 7\\n')")
        assert [one.line for one in box.files.grep("fail.\\d", regex=True)] == [2]


def test_an_expression_is_stopped_by_its_own_time_and_not_by_other_programs(monkeypatch):
    expression = backtracking.ChildExpression("a.c", ignore_case=False, latin1=False)
    monkeypatch.setattr(backtracking, "SECONDS", 0.2)
    os.kill(expression._child.pid, signal.SIGSTOP)  # as if the machine had no time for it
    threading.Timer(0.5, os.kill, (expression._child.pid, signal.SIGCONT)).start()
    assert expression.search(b"-abc-", 0, 5).span() == (1, 4)


def test_the_child_of_an_expression_ends_with_it():
    expression = backtracking.ChildExpression("a.c", ignore_case=False, latin1=False)
    found = expression.search(b"abd\nxabc\n", 0, 9)
    assert found.span() == (5, 8)
    child = expression._child
    del expression
    assert child.exit_code(0) == -9


def test_an_expression_that_takes_too_much_memory_is_stopped():
    expression = backtracking.ChildExpression("(?:(a)|b)*c", ignore_case=False, latin1=False)
    expression._child.kill()
    with pytest.raises(ConfigError, match="was stopped: it took too much memory or time"):
        expression.search(b"ab", 0, 2)
    with pytest.raises(ConfigError, match="was stopped"):
        expression.search(b"ab", 0, 2)


@pytest.mark.parametrize("loaded", [True, False], ids=["numpy", "no numpy"])
def test_lines_are_counted_alike_with_and_without_numpy(tmp_path, grep, monkeypatch, loaded):
    if loaded:
        pytest.importorskip("numpy")
    else:
        monkeypatch.delitem(sys.modules, "numpy", raising=False)
    lines = [b"x" * (n % 97) + (b" needle" if n % 4001 == 7 else b"") for n in range(40_000)]
    (tmp_path / "large").write_bytes(b"\n".join(lines))
    expected = [n + 1 for n, line in enumerate(lines) if b"needle" in line]
    assert [line for _, line, _ in grep("needle")["matches"]] == expected
    monkeypatch.setattr(blocks, "VERY_LARGE", 1)  # in two threads
    assert [line for _, line, _ in grep("needle")["matches"]] == expected
