"""A folder that was empty and has not changed is not looked into again."""

from __future__ import annotations

from atoll.guest.cells import delta


def test_an_empty_folder_is_known_by_the_time_of_its_last_change(tmp_path, monkeypatch):
    assert delta.empty_since(str(tmp_path)) is None, "what follows might have the same time"
    monkeypatch.setattr(delta, "SETTLED_NS", -(1 << 62))
    assert delta.empty_since(str(tmp_path)) == delta.changed(str(tmp_path)) is not None


def test_a_folder_with_anything_in_it_is_looked_into_each_time(tmp_path, monkeypatch):
    monkeypatch.setattr(delta, "SETTLED_NS", -(1 << 62))
    (tmp_path / "__pycache__").mkdir()
    assert delta.scan(str(tmp_path)) == {}
    assert delta.empty_since(str(tmp_path)) is None
    assert delta.empty_since(str(tmp_path / "missing")) is None
