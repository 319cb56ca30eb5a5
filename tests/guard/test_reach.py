"""Everything that guest code can reach by public names alone: no module, file or frame is in it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CRAWL = """
import builtins, contextlib, io, json, os, subprocess, types
from atoll.backends.restricted import checked_stdlib
from atoll.backends.restricted.worker import RestrictedRepl
from atoll.sandbox.guard import offered, words

checked_stdlib.mend_library()
repl = RestrictedRepl(contextlib.nullcontext)
load = repl.builtins[".load"]
hidden = (types.ModuleType, types.FrameType, types.CodeType, io.FileIO, io.TextIOWrapper)
never = ["eval", "exec", "compile", "open", "__import__", "getattr", "vars", "globals", "type"]
never = {id(getattr(builtins, name)) for name in never}
never |= {id(value) for module in (os, subprocess) for name, value in vars(module).items()
          if callable(value) and getattr(value, "__module__", "") in ("posix", "os", "subprocess")}

def crawl(queue):
    seen, kept, bad = set(), [], []
    while queue:
        path, value, depth = queue.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        kept.append(value)
        if isinstance(value, hidden) or id(value) in never:
            bad.append(path)
        elif depth < 3 and not isinstance(value, (int, str, bytes, float, complex)):
            for name in dir(value):
                if name[0] != "_" and name not in words.AMBIGUOUS | words.FRAMES:
                    with contextlib.suppress(Exception):
                        queue.append((path + "." + name, getattr(value, name), depth + 1))
    return len(seen), bad

queue = [(name, load(name), 0) for name in offered.MODULES]
queue += [(name, value, 0) for name, value in repl.builtins.items() if name.isidentifier()]
print(json.dumps([crawl(queue), crawl([("os", os, 0), ("x", types.SimpleNamespace(y=os.fork), 0)])]))
"""


@pytest.mark.spec("R4.13")
def test_public_names_lead_to_nothing_that_touches_the_system():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CRAWL],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    (count, bad), (_, control) = json.loads(done.stdout)
    assert count > 5000
    assert bad == []
    assert control == ["x.y", "os"]
