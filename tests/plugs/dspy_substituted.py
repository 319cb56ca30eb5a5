"""A plugin of pytest: DSPy's own tests find AtollInterpreter where they import PythonInterpreter.

Tests that name Deno, Pyodide or private members of that class are left out.
"""

import inspect
import re

import dspy
import dspy.predict.rlm
import dspy.primitives.python_interpreter as original

from atoll.integrations.dspy import AtollInterpreter

LIMITS = {"memory_bytes": 4 << 30, "disk_bytes": 2 << 30, "file_size_bytes": 1 << 30}
"""Their tests pass variables of 100 MB."""
ABOUT_DENO = re.compile(
    r"deno|pyodide|\bjs\b|jsonrpc|enable_(read|write|env|net)|lm_request_bytes|_make_jsonable"
    r"|(interpreter|interp|sandbox|PythonInterpreter\(\))\._(?!tools_registered)",
    re.IGNORECASE,
)
DEFAULTS = ("test_optional_parameters", "test_default_interpreter")
"""Tests of which class is the default."""


class Substituted(AtollInterpreter):
    def __init__(self, **options) -> None:
        super().__init__(**{"policy": LIMITS, **options})


def pytest_configure(config):
    replaced = original.PythonInterpreter
    for module in (original, dspy, dspy.predict.rlm):
        module.PythonInterpreter = Substituted
    start = dspy.predict.rlm.RLM.__init__
    start.__kwdefaults__ = {
        name: Substituted if one is replaced else one
        for name, one in (start.__kwdefaults__ or {}).items()
    }
    start.__defaults__ = tuple(
        Substituted if one is replaced else one for one in start.__defaults__ or ()
    )


def pytest_collection_modifyitems(config, items):
    kept, left = [], []
    for item in items:
        code = inspect.getsource(item.function)
        fixtures = {"pooled_interpreter", "configure_pooled_interpreter"} & set(item.fixturenames)
        concerned = fixtures or "PythonInterpreter" in code or "RLM" in code
        named = ABOUT_DENO.search(code) or item.originalname in DEFAULTS
        (kept if concerned and not named else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept
