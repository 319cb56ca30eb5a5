"""Deterministic tools that every environment has: the same arguments give the same result.

They need no extra, no network and no clock.

SECURITY: they run on the host with a guest's arguments. None of them evaluates code. Each checks
sizes, exponents and digits before it computes, and stops at a number of steps.
"""

from __future__ import annotations

from functools import cache

from atoll.agent.environment.toolbox.calculator import calculate
from atoll.agent.environment.toolbox.dates import date_add, date_diff
from atoll.agent.environment.toolbox.queries import csv_query, json_query
from atoll.agent.environment.toolbox.simplify import math_simplify
from atoll.agent.environment.toolbox.texts import regex_test, text_diff
from atoll.agent.environment.toolbox.units import convert_units
from atoll.sandbox.tools import Tool

_CALLS = (
    (math_simplify, "math_simplify(expression)"),
    (calculate, "calculate(expression)"),
    (convert_units, "convert_units(value, source, target)"),
    (date_add, "date_add(date, days=0, months=0, ...)"),
    (date_diff, "date_diff(start, end)"),
    (json_query, "json_query(data, path)"),
    (csv_query, "csv_query(text, where='', columns=None, order_by='', limit=100)"),
    (text_diff, "text_diff(old, new)"),
    (regex_test, "regex_test(pattern, text)"),
)


@cache
def deterministic_tools() -> tuple[Tool, ...]:
    """Return the tools; all are read-only, so they may be part of a chain and run side by side."""
    return tuple(
        Tool(
            name=function.__name__,
            function=function,
            usage=usage,
            read_only=True,
            allowed_callers=("code", "chain"),
        )
        for function, usage in _CALLS
    )
