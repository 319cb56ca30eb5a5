"""The framing alone: every way to cut a stream gives the same frames, and no string ends one."""

from __future__ import annotations

import json
import random

import pytest

from atoll.replserver.framing import BrokenFrame, Frame, FrameParser, Noise, encode

START, END = b">>> REQUEST_START <<<", b">>> REQUEST_END <<<"
MARKERS = (">>> REQUEST_START <<<", ">>> REQUEST_END <<<", ">>> RESPONSE_END <<<")


def parse(*reads, max_bytes=1 << 20):
    parser = FrameParser("REQUEST", max_bytes)
    return [event for data in reads for event in parser.feed(data)]


@pytest.mark.spec("R2.2")
def test_a_frame_has_the_markers_and_one_line_of_ascii():
    data = encode("RESPONSE", {"stdout": "é\n>>> RESPONSE_END <<<\n"})
    assert data.split(b"\n") == [
        b">>> RESPONSE_START <<<",
        b'{"stdout": "\\u00e9\\n>>> RESPONSE_END <<<\\n"}',
        b">>> RESPONSE_END <<<",
        b"",
    ]


@pytest.mark.spec("R2.2")
def test_a_frame_that_comes_byte_by_byte():
    data = encode("REQUEST", {"code": "1"})
    assert parse(*(data[at : at + 1] for at in range(len(data)))) == [Frame(b'{"code": "1"}')]


@pytest.mark.spec("R2.2")
@pytest.mark.parametrize("seed", range(20))
def test_random_splits_change_nothing(seed):
    rng = random.Random(seed)
    texts = ["".join(rng.choices(["a", "\n", "\r", "é", '"', *MARKERS], k=20)) for _ in range(30)]
    stream, expected = b"", []
    for text in texts:
        if rng.random() < 0.3:
            stream += b"stray line\n\n"
            expected.append(Noise(b"stray line"))
        stream += encode("REQUEST", {"code": text})
        expected.append(text)
    reads = []
    while stream:
        size = rng.choice([1, 2, 3, 20, 100, 5000])
        reads.append(stream[:size])
        stream = stream[size:]
    got = [json.loads(e.text)["code"] if isinstance(e, Frame) else e for e in parse(*reads)]
    assert got == expected


@pytest.mark.spec("R2.2")
def test_line_ends_of_windows_and_json_over_many_lines():
    data = START + b'\r\n{\r\n"code": "x"\r\n}\r\n' + END + b"\r\n"
    [frame] = parse(data)
    assert json.loads(frame.text) == {"code": "x"}


def test_an_end_without_its_line_end_is_waited_for():
    parser = FrameParser("REQUEST")
    assert parser.feed(START + b"\n{}\n" + END) == []
    assert parser.feed(b"\n") == [Frame(b"{}")]


def test_noise_is_told_and_cut():
    events = parse(
        b"hello\n\n   \n" + END + b"\n" + b"x" * 1000 + b"\n" + START + b"\n{}\n" + END + b"\n"
    )
    assert events == [Noise(b"hello"), Noise(END), Noise(b"x" * 200), Frame(b"{}")]


def test_a_frame_inside_another_begins_anew():
    events = parse(START + b'\n{"co' + b"\n" + START + b"\n{}\n" + END + b"\n")
    assert events == [BrokenFrame("a frame began inside another"), Frame(b"{}")]


@pytest.mark.parametrize("line_end", [b"", b"\n"], ids=["one line", "many lines"])
def test_a_frame_over_the_cap_is_refused_and_the_next_is_read(line_end):
    body = (b"x" * 10 + line_end) * 100
    data = START + b"\n" + body + b"\n" + END + b"\n"
    parser = FrameParser("REQUEST", max_bytes=100)
    events = [event for at in range(0, len(data), 7) for event in parser.feed(data[at : at + 7])]
    assert events == [BrokenFrame("a frame over 100 bytes")]
    assert parser.feed(START + b"\n{}\n" + END + b"\n") == [Frame(b"{}")]


def test_a_flood_without_a_line_end_is_not_kept():
    parser = FrameParser("REQUEST", max_bytes=1000)
    for _ in range(1000):
        parser.feed(b"x" * 1000)
    assert sum(map(len, parser._lines._parts)) == 1001
