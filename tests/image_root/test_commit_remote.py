"""Sessions of a service committed as images: only where its operator allows it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

import atoll
from atoll.errors import AtollError

own_service = pytest.importorskip("own_service", reason="the extra `server` is not installed")


@pytest.fixture(scope="module")
def service(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A service that lets sessions be committed under some names."""
    names = (f"data={image}", "team/*")
    found = own_service.OwnService(
        tmp_path_factory.mktemp("service"),
        tier="bare",
        session_images=names,
        commit_images=("team/remote-*", "plain*"),
    )
    yield found
    found.stop()


def open_box(service: Any, image: str = "data") -> Any:
    url, key = service.start()
    options = {"backend": "remote", "url": url, "api_key": key}
    return atoll.create_sandbox(image=image, writable_root=True, **options)


def test_a_session_of_a_service_is_committed_and_used_again(service: Any) -> None:
    name = f"team/remote-{secrets.token_hex(4)}:1"  # the store outlives the tests
    with open_box(service) as box:
        assert box.shell("touch /srv/kept").exit_code == 0
        made = box.commit(name)
        with pytest.raises(AtollError, match="exists, and names are shared: choose another tag"):
            box.commit(name)
    with open_box(service, name) as box:
        assert box.shell("ls /srv").output == "kept\n"
        assert box.execute("1").image == made.digest


@pytest.mark.parametrize(
    ("target", "push", "words"),
    [
        (
            "other/env:1",
            False,
            r"only the images team/remote-\*, plain\* .*--commit-image other/env",
        ),
        ("oci:/tmp/out", False, "--commit-image oci:/tmp/out"),
        ("plain.example.com/env:1", True, "pushes only to registries that --commit-image names"),
    ],
)
def test_an_operator_decides_where(service: Any, target: str, push: Any, words: str) -> None:
    with open_box(service) as box, pytest.raises(AtollError, match=words):
        box.commit(target, push=push)
