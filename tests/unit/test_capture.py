"""Capturing output: what is kept, what is streamed, how a cut shows."""

from __future__ import annotations

from atoll.sandbox.output import LineSplitter, OutputCapture


def capture(data: bytes, *, max_bytes: int, max_chars: int, step: int = 7) -> tuple[str, bool]:
    one = OutputCapture(max_bytes=max_bytes, max_chars=max_chars)
    for start in range(0, len(data), step):
        one.feed(data[start : start + step])
    return one.finish()


def test_all_of_a_short_text_is_kept_across_split_characters():
    text = "añb😀c" * 30
    assert capture(text.encode(), max_bytes=10_000, max_chars=10_000, step=1) == (text, False)


def test_exactly_the_limit_is_whole():
    assert capture(b"x" * 100, max_bytes=100, max_chars=100) == ("x" * 100, False)


def test_a_cut_keeps_the_first_and_the_last_and_counts_the_rest():
    data = bytes(range(65, 91)) * 1000
    text, cut = capture(data, max_bytes=1 << 20, max_chars=500)
    assert cut
    assert len(text) <= 500
    assert text.startswith("ABCDEF")
    assert text.endswith("XYZ")
    kept = len(text.split("\n")[0]) + len(text.split("\n")[-1])
    assert f"{26_000 - kept:,} of 26,000 bytes left out" in text


def test_memory_stays_bounded_in_a_flood():
    one = OutputCapture(max_bytes=1000, max_chars=1000)
    for _ in range(1000):
        one.feed(b"y" * 10_000)
    assert len(one._head) + len(one._tail) < 20_000
    assert "of 10,000,000 bytes" in one.finish()[0]


def test_a_cut_of_a_flood_is_within_the_limit_too():
    one = OutputCapture(max_bytes=1 << 20, max_chars=1000)
    for _ in range(400):
        one.feed(b"y" * (1 << 20))
    assert len(one.finish()[0]) <= 1000


def test_a_tiny_limit_still_says_that_it_cut():
    text, cut = capture(b"x" * 1000, max_bytes=10, max_chars=10)
    assert cut
    assert "1,000 of 1,000 bytes left out" in text


def test_lines_are_split_where_they_end():
    lines: list[str] = []
    splitter = LineSplitter(lines.append, 1000)
    for part in (b"on", b"e\ntwo\n\nthr", "é".encode()[:1], "é".encode()[1:], b"e"):
        splitter.feed(part)
    assert lines == ["one", "two", ""]
    splitter.finish()
    assert lines[-1] == "thrée"
