"""Trajectories: the events of a run of a recursive language model, written, read and shown."""

from atoll.trajectory.codec import from_dict, to_dict
from atoll.trajectory.events import (
    KINDS,
    BudgetWarned,
    CodeRan,
    Event,
    Explored,
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
from atoll.trajectory.fields import Usage
from atoll.trajectory.reader import Trajectory, read
from atoll.trajectory.tree import Node, Totals
from atoll.trajectory.writer import TrajectoryWriter

__all__ = [
    "KINDS",
    "BudgetWarned",
    "CodeRan",
    "Event",
    "Explored",
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
