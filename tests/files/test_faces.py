"""The faces of the file operations: async, blocking, and the protocol say the same."""

from __future__ import annotations

import inspect

import pytest

from atoll.files.base import Files, SyncFiles
from atoll.shell.sandbox import SandboxBackendProtocol

HOOKS = ("reach_by",)
"""What a backend calls, not a caller."""
NAMES = [
    name
    for name, _ in inspect.getmembers(Files, inspect.isfunction)
    if name[0] != "_" and name not in HOOKS
]
OTHER_NAMES = ("ls_info", "grep_raw", "glob_info")
OWN = ("stat", "mkdir", "delete", "move", *OTHER_NAMES)
IN_PROTOCOL = [name for name in NAMES if name not in OWN]
"""What every sandbox of somebody else's must offer; the other operations are Atoll's own."""
FACES = [(SyncFiles, name) for name in NAMES]
FACES += [(SandboxBackendProtocol, name) for name in IN_PROTOCOL]
OWN_OPTIONS = {SandboxBackendProtocol: {"absolute"}}
"""Options that Atoll adds to an operation of the protocol; each has a default."""


@pytest.mark.spec("R3.11")
@pytest.mark.parametrize(("face", "name"), FACES)
def test_every_operation_has_the_same_parameters(face, name):
    own = OWN_OPTIONS.get(face, set())
    parameters = inspect.signature(getattr(Files, name)).parameters
    expected = {key: one for key, one in parameters.items() if key not in own}
    assert dict(inspect.signature(getattr(face, name)).parameters) == expected


def test_nine_operations_are_the_protocol_and_four_are_more():
    assert len(NAMES) == 13 + len(OTHER_NAMES)
    assert len(IN_PROTOCOL) == 9
