"""Trajectories: what happened in a run of a recursive language model, written, read, shown."""

from atoll.rlm.trajectory.codec import from_dict, to_dict
from atoll.rlm.trajectory.events import (
    KINDS,
    BudgetWarned,
    CodeRan,
    Event,
    FinalGiven,
    ModelAnswered,
    ModelAsked,
    Planned,
    Refused,
    RunEnded,
    RunStarted,
    SubcallEnded,
    SubcallStarted,
    UnknownEvent,
)
from atoll.rlm.trajectory.fields import Usage
from atoll.rlm.trajectory.reader import Trajectory, read
from atoll.rlm.trajectory.tree import Node, Totals
from atoll.rlm.trajectory.writer import TrajectoryWriter

__all__ = [
    "KINDS",
    "BudgetWarned",
    "CodeRan",
    "Event",
    "FinalGiven",
    "ModelAnswered",
    "ModelAsked",
    "Node",
    "Planned",
    "Refused",
    "RunEnded",
    "RunStarted",
    "SubcallEnded",
    "SubcallStarted",
    "Totals",
    "Trajectory",
    "TrajectoryWriter",
    "UnknownEvent",
    "Usage",
    "from_dict",
    "read",
    "to_dict",
]
