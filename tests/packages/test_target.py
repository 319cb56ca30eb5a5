"""What gets packages for an interpreter that has no pip."""

from __future__ import annotations

import sys

from atoll.packages import target


def test_uv_is_found_beside_an_interpreter_whose_environment_is_not_activated(
    tmp_path, monkeypatch
):
    uv = tmp_path / "uv"
    monkeypatch.setenv("PATH", "/no/such/folder")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert target._uv() is None
    uv.touch(mode=0o755)
    assert target._uv() == str(uv)
