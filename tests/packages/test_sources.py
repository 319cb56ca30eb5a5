"""Packages that are source only: built if asked, in a jail without network; their code stays there."""

from __future__ import annotations

import os

import pytest

from atoll.errors import PackageError
from atoll.packages.environment import ensure

ATTACK = """
import os, socket
found = []
def attempt(what, function):
    try:
        function()
        found.append(what)
    except OSError:
        pass
attempt("network", lambda: socket.create_connection(("127.0.0.1", {port}), 1))
attempt("wrote", lambda: open({place!r}, "w").write("x"))
attempt("read", lambda: open("/etc/shadow").read())
attempt("killed", lambda: os.kill({pid}, 9))
found.append(os.getcwd() != "/" and os.getuid())
"""


def test_a_source_is_built_only_if_asked_and_reaches_nothing(cache, index, target, tmp_path):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.01)
        place, port = str(tmp_path / "escaped"), server.getsockname()[1]
        index.source("tiny", backend=ATTACK.format(port=port, place=place, pid=os.getpid()))
        index.wheel("user", needs=("tiny>=1",))
        with pytest.raises(PackageError) as caught:
            ensure(["user"], target)
        assert caught.value.package == "tiny"
        hold = ensure(["user"], target, allow_source=True)
        with pytest.raises(TimeoutError):
            server.accept()
    hold.close()
    text = (hold.environment.folder / "site" / "tiny" / "__init__.py").read_text()
    assert text == "built = [1000]", text  # the guest's user, and nothing that it tried
    assert not os.path.exists(place)
    assert [(one.name, one.from_source) for one in hold.environment.packages] == [
        ("tiny", True),
        ("user", False),
    ]


@pytest.mark.long
def test_a_source_that_does_not_build_says_why(cache, index, target):
    index.source("tiny", backend="raise ValueError('no compiler here')\n")
    with pytest.raises(
        PackageError, match=r"'tiny' cannot be installed: its source does not build: .*no compiler"
    ):
        ensure(["tiny"], target, allow_source=True)
