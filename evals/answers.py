"""The answers of an evaluation in a file of JSON lines, so that it can be stopped and continued."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from evals.asking import Result
from evals.report import Row

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from evals.benchmarks import AnyTask


class Answers:
    """Rows that are known from an earlier run with the same settings; new ones are appended."""

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self._path, self._settings = path, dict(settings)
        known = path.read_text().splitlines() if path is not None and path.exists() else []
        told = [json.loads(line) for line in known]
        self._known = {
            (one["task"], one["arm"]): one for one in told if one["settings"] == self._settings
        }

    def known(self, task: AnyTask, arm: str) -> Row | None:
        """Return what an arm answered to a task before; None if it was not asked."""
        told = self._known.get((task.name, arm))
        if told is None:
            return None
        fields = {one.name: told[one.name] for one in dataclasses.fields(Result)}
        right, score = told["right"], told.get("score", 0.0)
        return Row(family=task.family, arm=arm, right=right, result=Result(**fields), score=score)

    def keep(self, task: AnyTask, row: Row) -> None:
        """Append a row to the file."""
        if self._path is None:
            return
        told = {"task": task.name, "arm": row.arm, "right": row.right, "score": row.score}
        told |= dataclasses.asdict(row.result)
        with self._path.open("a") as file:
            file.write(json.dumps({**told, "settings": self._settings}) + "\n")
