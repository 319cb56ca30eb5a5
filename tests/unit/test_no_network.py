"""How `socket` comes to say that there is no network: when it is imported, and not before."""

from __future__ import annotations

import atoll

FINDERS = "[type(finder).__name__ for finder in sys.meta_path]"


def test_socket_is_not_imported_before_it_is_needed_and_nothing_waits_for_it_then():
    with atoll.create_sandbox(backend="native") as box:
        before = box.execute(f"import sys\n{FINDERS}").value
        assert box.execute("'socket' in sys.modules").value is False
        assert before[0] == "ChangingFinder"
        imported = ("socket", "inspect", "asyncio.runners", "multiprocessing.spawn")
        waiting = set(box.execute("sorted(sys.meta_path[0].changes)").value)
        assert waiting.issuperset(imported)
        box.execute(f"import {', '.join(imported)}")
        assert box.execute(FINDERS).value == before
        left = set(box.execute("sorted(sys.meta_path[0].changes)").value)
        assert left == waiting.difference(box.execute("sorted(sys.modules)").value)
        assert left.isdisjoint(imported)
        assert box.execute("type(socket.__loader__).__name__").value == "SourceFileLoader"
        assert box.execute("import inspect\n'def ' in inspect.getsource(socket)").value is True
        assert box.execute("socket.getaddrinfo.__name__").value == "getaddrinfo"


def test_a_module_that_is_loaded_again_is_plain():
    with atoll.create_sandbox(backend="native") as box:
        code = "import importlib, socket\nimportlib.reload(socket).gethostbyname('x')"
        assert box.execute(code).error_type == "socket.gaierror"
