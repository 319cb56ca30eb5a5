"""The parsing process may crash, hang or lie: the file is cut into lines, the host goes on."""

from __future__ import annotations

import os

import pytest

from atoll.retrieval import parsing
from atoll.retrieval.parsing import Parser
from atoll.retrieval.types import Bounds

pytestmark = pytest.mark.spec("R4.4")
TEXT = "def f():\n    return 1\n"
UNIT = (
    '{"path":"/etc/passwd","kind":"function","name":"f","signature":"","doc":"","body":"","start_line":1,'
    '"end_line":1,"start":0,"end":%s}'
)
BAD = {
    "crashes": "import os; os.abort()",
    "hangs": "import time; time.sleep(600)",
    "eats": "sys.stdin.readline(); x = [bytearray(1 << 20) for _ in range(10**6)]",
    "babbles": "\nwhile True: print('x' * 10**6, end='')",
    "no-json": "print('units')",
    "no-list": "print('{}')",
    "no-unit": "print('[{}]')",
    "no-number": f"print('[{UNIT % 'true'}]')",
    "nested": "print('[' * 100000)",
    "too-many": f"print('[' + ','.join(['{UNIT % 1}'] * 6) + ']')",
}


@pytest.mark.parametrize("how", BAD)
def test_a_parser_that_fails_costs_one_file_its_functions(monkeypatch, how):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28)); "
    monkeypatch.setattr(parsing, "_BEGIN", limit + BAD[how])
    monkeypatch.setattr(parsing, "_START_SECONDS", 0 if how == "hangs" else 60)
    with Parser(Bounds(parse_seconds=0.2, units_per_file=5)) as parser:
        units = parser.units("a.py", TEXT)
    assert parser.failures == 1
    assert [(unit.kind, unit.body) for unit in units] == [("lines", TEXT)]


def test_a_file_after_one_that_broke_the_parser_is_parsed(monkeypatch):
    with Parser(Bounds()) as parser:
        with monkeypatch.context() as patch:
            patch.setattr(parsing, "_BEGIN", "import os; os.abort()")
            parser.units("bad.py", TEXT)
        assert [unit.kind for unit in parser.units("good.py", TEXT)] == ["function"]


def test_a_unit_has_the_path_that_was_asked_for(monkeypatch):
    monkeypatch.setattr(parsing, "_BEGIN", f"print('[{UNIT % 1}]')")
    with Parser(Bounds()) as parser:
        assert [unit.path for unit in parser.units("a.py", TEXT)] == ["a.py"]


def test_the_process_has_no_environment_and_is_gone_afterwards(monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "s3cret")
    with Parser(Bounds()) as parser:
        parser.units("a.py", TEXT)
        pid = parser._process.pid
        with open(f"/proc/{pid}/environ") as file:
            assert "s3cret" not in file.read()
        before = len(os.listdir("/proc/self/fd"))
    assert not os.path.exists(f"/proc/{pid}")
    assert len(os.listdir("/proc/self/fd")) == before - 2


def test_documents_need_no_process():
    with Parser(Bounds()) as parser:
        assert parser.units("a.md", "# A\ntext\n")
        assert parser._process is None
