"""RLM("local"): the server of the downloaded model is started with the first question."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import atoll
from atoll.agent.rlm.models import local
from atoll.agent.rlm.models.local import QWEN

FAKE = Path(__file__).parents[2] / "cli" / "fake_xllamacpp.py"


def test_a_run_may_ask_the_local_model(monkeypatch, tmp_path):
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path))
    with pytest.raises(atoll.ConfigError, match=r"not downloaded\. Type: atoll model get"):
        atoll.RLM("local")
    (tmp_path / "llm").mkdir()
    (tmp_path / "llm" / QWEN.file).touch()
    monkeypatch.setattr(local, "is_installed", lambda: False)
    with pytest.raises(atoll.ConfigError, match="needs xllamacpp"):
        atoll.RLM("local")
    monkeypatch.setattr(local, "is_installed", lambda: True)
    shutil.copy(FAKE, tmp_path / "xllamacpp.py")
    (tmp_path / "replies.json").write_text(json.dumps(["Ada did."]))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("FAKE_REPLIES", str(tmp_path / "replies.json"))
    with atoll.RLM("local") as rlm:
        assert rlm.completion("Who signed it?", "Ada signed it.").text == "Ada did."
