"""The faces of the file operations: async, blocking, and the protocol say the same."""

from __future__ import annotations

import inspect

import pytest

from atoll.files.base import Files
from atoll.files.sync import SyncFiles
from atoll.shell.protocol import SandboxBackendProtocol

NAMES = [name for name, _ in inspect.getmembers(Files, inspect.isfunction) if name[0] != "_"]


IN_PROTOCOL = [name for name in NAMES if name not in ("stat", "mkdir", "delete", "move")]
"""What every sandbox of somebody else's must offer; the other operations are Atoll's own."""
FACES = [(SyncFiles, name) for name in NAMES]
FACES += [(SandboxBackendProtocol, name) for name in IN_PROTOCOL]


@pytest.mark.spec("R3.11")
@pytest.mark.parametrize(("face", "name"), FACES)
def test_every_operation_has_the_same_parameters(face, name):
    expected = inspect.signature(getattr(Files, name)).parameters
    assert inspect.signature(getattr(face, name)).parameters == expected


def test_nine_operations_are_the_protocol_and_four_are_more():
    assert len(NAMES) == 13
    assert len(IN_PROTOCOL) == 9
