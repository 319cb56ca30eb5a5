"""An image in use is found again without the store, until its reference means another."""

from __future__ import annotations

import pytest
from made_images import Layout, file

from atoll.images import get_image, in_use, store
from atoll.images.obtain import name_image


@pytest.fixture(autouse=True)
def _settled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_use, "SETTLED_NS", -(10**12))


@pytest.mark.usefixtures("cache")
def test_an_image_in_use_is_held_again_without_reading(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = layout.image([file("a", b"1")])
    held = get_image(reference)
    with monkeypatch.context() as without:
        without.setattr(store, "hold", None)
        again = get_image(reference)
    assert again.image is held.image
    held.close()
    assert not store.remove(again.image.digest)
    again.close()
    assert in_use.find(reference) is None
    assert store.remove(held.image.digest)


@pytest.mark.usefixtures("cache")
def test_a_reference_that_means_another_image_is_read_again(layout: Layout) -> None:
    reference = layout.image([file("a", b"1")])
    first = get_image(reference)
    assert layout.image([file("a", b"2")]) == reference
    second = get_image(reference)
    assert first.image.digest != second.image.digest
    named = name_image(first.again(), "team/env:1")
    assert get_image("team/env:1").image.digest == first.image.digest
    name_image(second.again(), "team/env:1")
    assert get_image("team/env:1").image.digest == second.image.digest
    named.close()


@pytest.mark.usefixtures("cache")
def test_a_file_that_was_just_written_is_read_again(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_use, "SETTLED_NS", 10**12)
    reference = layout.image([file("a", b"1")])
    held = get_image(reference)
    assert in_use.find(reference) is None
    held.close()
