"""The faces of the file operations: async, blocking, and the protocol say the same."""

from __future__ import annotations

import inspect

import pytest

from atoll.files.base import Files
from atoll.files.sync import SyncFiles
from atoll.shell.protocol import SandboxBackendProtocol

NAMES = [name for name, _ in inspect.getmembers(Files, inspect.isfunction) if name[0] != "_"]


@pytest.mark.spec("R3.11")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("face", [SyncFiles, SandboxBackendProtocol])
def test_every_operation_has_the_same_parameters(face, name):
    expected = inspect.signature(getattr(Files, name)).parameters
    assert inspect.signature(getattr(face, name)).parameters == expected


def test_there_are_nine_operations():
    assert len(NAMES) == 9
