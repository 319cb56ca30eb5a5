"""Trajectories: the events of a run of a recursive language model, written, read and shown."""

from atoll.agent.trajectory.events import KINDS as KINDS
from atoll.agent.trajectory.events import BudgetWarned as BudgetWarned
from atoll.agent.trajectory.events import CodeRan as CodeRan
from atoll.agent.trajectory.events import Event as Event
from atoll.agent.trajectory.events import Explored as Explored
from atoll.agent.trajectory.events import FinalGiven as FinalGiven
from atoll.agent.trajectory.events import ModelAnswered as ModelAnswered
from atoll.agent.trajectory.events import ModelAsked as ModelAsked
from atoll.agent.trajectory.events import Planned as Planned
from atoll.agent.trajectory.events import Refused as Refused
from atoll.agent.trajectory.events import RunEnded as RunEnded
from atoll.agent.trajectory.events import RunStarted as RunStarted
from atoll.agent.trajectory.events import SubcallEnded as SubcallEnded
from atoll.agent.trajectory.events import SubcallStarted as SubcallStarted
from atoll.agent.trajectory.events import UnknownEvent as UnknownEvent
from atoll.agent.trajectory.events import Usage as Usage
from atoll.agent.trajectory.events import from_dict as from_dict
from atoll.agent.trajectory.events import to_dict as to_dict
from atoll.agent.trajectory.reader import Trajectory as Trajectory
from atoll.agent.trajectory.reader import TrajectoryWriter as TrajectoryWriter
from atoll.agent.trajectory.reader import read as read
from atoll.agent.trajectory.tree import Node as Node
from atoll.agent.trajectory.tree import Totals as Totals
