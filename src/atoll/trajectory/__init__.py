"""Trajectories: the events of a run of a recursive language model, written, read and shown."""

from atoll.trajectory.codec import from_dict as from_dict
from atoll.trajectory.codec import to_dict as to_dict
from atoll.trajectory.events import KINDS as KINDS
from atoll.trajectory.events import BudgetWarned as BudgetWarned
from atoll.trajectory.events import CodeRan as CodeRan
from atoll.trajectory.events import Event as Event
from atoll.trajectory.events import Explored as Explored
from atoll.trajectory.events import FinalGiven as FinalGiven
from atoll.trajectory.events import ModelAnswered as ModelAnswered
from atoll.trajectory.events import ModelAsked as ModelAsked
from atoll.trajectory.events import Planned as Planned
from atoll.trajectory.events import Refused as Refused
from atoll.trajectory.events import RunEnded as RunEnded
from atoll.trajectory.events import RunStarted as RunStarted
from atoll.trajectory.events import SubcallEnded as SubcallEnded
from atoll.trajectory.events import SubcallStarted as SubcallStarted
from atoll.trajectory.events import UnknownEvent as UnknownEvent
from atoll.trajectory.fields import Usage as Usage
from atoll.trajectory.reader import Trajectory as Trajectory
from atoll.trajectory.reader import read as read
from atoll.trajectory.tree import Node as Node
from atoll.trajectory.tree import Totals as Totals
from atoll.trajectory.writer import TrajectoryWriter as TrajectoryWriter
