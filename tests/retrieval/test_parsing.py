"""The parsing process may crash, hang or lie: the file is cut into lines, the host goes on."""

from __future__ import annotations

import os

import pytest

from atoll.agent.retrieval import parsing
from atoll.agent.retrieval.parsing import Parser
from atoll.agent.retrieval.types import Bounds

pytestmark = pytest.mark.spec("R4.4")
TEXT = "def f():\n    return 1\n"
UNIT = (
    '{"path":"/etc/passwd","kind":"function","name":"f","signature":"","doc":"","body":"","start_line":1,'
    '"end_line":1,"start":0,"end":%s}'
)
BAD = {
    "crashes": "os.abort()",
    "hangs": "time.sleep(600)",
    "eats": "x = [bytearray(1 << 20) for _ in range(10**6)]",
    "babbles": "os.write(3, b'x' * 10**6)",
    "no-json": "return {}, b'units'",
    "no-list": "return {}, b'{}'",
    "no-unit": "return {}, b'[{}]'",
    "no-number": f"return {{}}, b'[{UNIT % 'true'}]'",
    "nested": "return {}, b'[' * 100000",
    "too-many": f"return {{}}, b'[' + b','.join([b'{UNIT % 1}'] * 6) + b']'",
    "opens": "return {}, open('/etc/passwd', 'rb').read()",
}
WORKER = """
import os, time
from atoll.agent.archive.confined import serve
def units(path, most, payload=b""):
    {}
def main():
    serve({{"units": units}}, lambda **facts: None)
"""


@pytest.fixture
def bad_worker(monkeypatch, tmp_path):
    """Return a function that replaces the body of the worker."""

    def replace(body: str) -> None:
        (tmp_path / "bad_worker.py").write_text(WORKER.format(body))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(parsing, "_WORKER", "bad_worker")

    return replace


@pytest.mark.parametrize("how", BAD)
def test_a_parser_that_fails_costs_one_file_its_functions(bad_worker, how):
    bad_worker(BAD[how])
    with Parser(Bounds(parse_seconds=0.2, units_per_file=5)) as parser:
        units = parser.units("a.py", TEXT)
    assert parser.failures == 1
    assert [(unit.kind, unit.body) for unit in units] == [("lines", TEXT)]


def test_a_file_after_one_that_broke_the_parser_is_parsed(bad_worker, monkeypatch):
    with Parser(Bounds()) as parser:
        with monkeypatch.context() as patch:
            patch.setattr(parsing, "_WORKER", "no_such_module")
            parser.units("bad.py", TEXT)
        assert [unit.kind for unit in parser.units("good.py", TEXT)] == ["function"]


def test_a_unit_has_the_path_that_was_asked_for(bad_worker):
    bad_worker(f"return {{}}, b'[{UNIT % 1}]'")
    with Parser(Bounds()) as parser:
        assert [unit.path for unit in parser.units("a.py", TEXT)] == ["a.py"]


@pytest.mark.parametrize("name", ["a.py", "a.go", "a.rs"])
def test_the_parser_is_confined_and_a_large_file_reaches_it(name):
    text = {"a.py": TEXT, "a.go": "func f() int { return 1 }\n", "a.rs": "fn f() -> u8 { 1 }\n"}
    with Parser(Bounds()) as parser:
        assert "function" in {unit.kind for unit in parser.units(name, text[name] * 20_000)}
        assert parser.failures == 0
        assert [process.confined for process in parser._processes.values()] == [True]


def test_the_process_has_no_environment_and_is_gone_afterwards(monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "s3cret")
    with Parser(Bounds()) as parser:
        parser.units("a.py", TEXT)
        pid = parser._processes[""].pid
        with open(f"/proc/{pid}/environ") as file:
            assert "s3cret" not in file.read()
        before = len(os.listdir("/proc/self/fd"))
    assert not os.path.exists(f"/proc/{pid}")
    assert len(os.listdir("/proc/self/fd")) == before - 2


def test_documents_need_no_process():
    with Parser(Bounds()) as parser:
        assert parser.units("a.md", "# A\ntext\n")
        assert not parser._processes
