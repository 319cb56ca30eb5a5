"""Fixtures of the tests of hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from atoll.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def atoll(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run `atoll` in this process: exit code, stdout, stderr."""

    def call(*argv: str) -> tuple[int, str, str]:
        return main(argv), *capfd.readouterr()

    return call
