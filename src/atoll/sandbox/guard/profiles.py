"""What each guard refuses: tables of names and syntax, with what to do instead."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atoll.sandbox.guard import offered, words

if TYPE_CHECKING:
    from collections.abc import Mapping

JAILED = 'run it in a jailed backend without a guard: create_sandbox(backend="native")'
ADVICE = {
    "module": "{} must not be imported here; " + JAILED,
    "star-import": "import the names you need from {}: what a star brings is not checked",
    "call": "{} is not allowed here: {}",
    "attribute": "the attribute {} leads to the interpreter's insides: use public attributes",
    "class": "{} is for a class's name, for a call or a comparison: use type(x)",
    "frame": "{} leads to frames and code: nothing ordinary needs it",
    "gadget": "the attribute {} leads to the system: import what you need by its own name",
    "identifier": "the name {} belongs to the interpreter: choose another",
    "subscript": "the key {} belongs to the interpreter: use public names",
    "format-string": "a format string may not walk attributes like {}: name the value itself",
    "exception-object": "{}.obj hands out the object that failed: name the object itself",
    "pattern": "a pattern may not look at {}: match on public attributes",
    "match-args": "{} must be a tuple of plain names written out",
    "assignment": "{} may not be changed in place: assign the whole value",
    "syntax": "{} is not allowed here: {}",
    "magic": "{} is not allowed here: a guard checks Python alone; write it in Python",
    "bidirectional": "column {} has {} (U+{}), which makes code look different from what it does: "
    "leave it out, or write an escape such as \\u{} in a string",
    "unread": "Python {} of the guard cannot parse this code, which the guest's Python can: "
    "write it without newer syntax",
    "nesting": "the code is nested too deeply to be checked: split it",
    "size": "the code has {}: pass data as context instead",
}
"""Each rule and its message; the first {} is the offending text."""

CALL_ADVICE = {
    "eval": "write the expression itself, or parse with json.loads",
    "exec": "write the code itself",
    "compile": "write the code itself",
    "open": "the data is in `context`; files want a jailed backend",
    "__import__": "write an import statement",
    "locals": "name the variables",
    "globals": "name the variables",
    "getattr": "write the attribute out: x.name",
    "setattr": "write the attribute out: x.name = value",
    "delattr": "write the attribute out: del x.name",
    "hasattr": "try the attribute and catch AttributeError",
    "vars": "name the attributes",
    "dir": "name the attributes",
    "attrgetter": "use a lambda: lambda x: x.name",
    "methodcaller": "use a lambda: lambda x: x.method()",
}
OTHER_ADVICE = "leave it out"
EXCEPT_STAR: Mapping[type[ast.AST], tuple[str, str]] = {
    ast.TryStar: ("except*", "catch the group with except and look at its exceptions")
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One guard's tables."""

    refused_modules: frozenset[str] = frozenset()
    offered_modules: frozenset[str] | None = None
    """If set, only these modules may be imported."""
    calls: frozenset[str]
    readable: frozenset[str]
    gadgets: frozenset[str] = frozenset()
    looks_at_texts: bool
    """Whether constant strings are checked: for guards without a check at run time."""
    syntax: Mapping[type[ast.AST], tuple[str, str]] = field(default_factory=lambda: EXCEPT_STAR)


AST = Profile(
    refused_modules=words.MODULES,
    calls=words.CALLS,
    readable=words.READABLE,
    gadgets=words.GADGETS,
    looks_at_texts=True,
)
"""A check of the source text alone; the backend then runs the code unchanged."""

POLICY = Profile(
    refused_modules=words.MODULES, calls=words.CALLS, readable=words.READABLE, looks_at_texts=True
)
"""Rules in addition to RestrictedPython's own policy."""

RESTRICTED = Profile(
    offered_modules=frozenset(offered.MODULES),
    calls=words.NEVER,
    readable=words.READABLE | words.LOOKED_AT,
    looks_at_texts=False,
)
"""The static half of the `restricted` backend, which checks ambiguous cases at run time."""
