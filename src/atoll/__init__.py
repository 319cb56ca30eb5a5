"""Atoll runs Python that agents write: isolated, fast, with state that is kept.

    import atoll

    with atoll.create_sandbox(context=text) as box:
        result = box.execute("print(len(context))")

Importing this package loads nothing: each name is loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atoll import aio as aio
    from atoll.backends.daemon import DaemonClientSandbox as DaemonClientSandbox
    from atoll.backends.gvisor import GvisorSandbox as GvisorSandbox
    from atoll.backends.native import NativePythonSandbox as NativePythonSandbox
    from atoll.backends.pyodide import DirectPyodideSandbox as DirectPyodideSandbox
    from atoll.backends.pyodide import PyodideSandbox as PyodideSandbox
    from atoll.backends.wasm import PythonSandbox as PythonSandbox
    from atoll.backends.wasm import run_untrusted_python as run_untrusted_python
    from atoll.config import SandboxConfig as SandboxConfig
    from atoll.context import Context as Context
    from atoll.environment.blocking import REPLEnvironment as REPLEnvironment
    from atoll.environment.chain import ChainReport as ChainReport
    from atoll.environment.invocations import Invocation as Invocation
    from atoll.environment.options import EnvironmentConfig as EnvironmentConfig
    from atoll.environment.options import REPLConfig as REPLConfig
    from atoll.environment.taint import Approval as Approval
    from atoll.environment.taint import Origin as Origin
    from atoll.environment.types import Final as Final
    from atoll.environment.types import Turn as Turn
    from atoll.errors import ArchiveError as ArchiveError
    from atoll.errors import ArchiveLimitError as ArchiveLimitError
    from atoll.errors import AtollError as AtollError
    from atoll.errors import BackendUnavailableError as BackendUnavailableError
    from atoll.errors import BusyError as BusyError
    from atoll.errors import ConfigError as ConfigError
    from atoll.errors import ExecutionTimeoutError as ExecutionTimeoutError
    from atoll.errors import IsolationError as IsolationError
    from atoll.errors import LimitUnsupportedError as LimitUnsupportedError
    from atoll.errors import MemoryStoreError as MemoryStoreError
    from atoll.errors import ModelError as ModelError
    from atoll.errors import ModelRecordError as ModelRecordError
    from atoll.errors import ModelRefusedError as ModelRefusedError
    from atoll.errors import ModelReplyError as ModelReplyError
    from atoll.errors import ModelTimeoutError as ModelTimeoutError
    from atoll.errors import ModelUnavailableError as ModelUnavailableError
    from atoll.errors import PackageError as PackageError
    from atoll.errors import SandboxClosedError as SandboxClosedError
    from atoll.errors import SandboxError as SandboxError
    from atoll.errors import SandboxLostError as SandboxLostError
    from atoll.errors import SandboxStartError as SandboxStartError
    from atoll.errors import StateError as StateError
    from atoll.errors import UnknownBackendError as UnknownBackendError
    from atoll.errors import UnsupportedError as UnsupportedError
    from atoll.errors import VariableError as VariableError
    from atoll.errors import WebError as WebError
    from atoll.errors import WebRefusedError as WebRefusedError
    from atoll.explore.evidence import Evidence as Evidence
    from atoll.explore.ledger import Coverage as Coverage
    from atoll.factory import create_sandbox as create_sandbox
    from atoll.files.types import DownloadResult as DownloadResult
    from atoll.files.types import EditResult as EditResult
    from atoll.files.types import FileData as FileData
    from atoll.files.types import FileError as FileError
    from atoll.files.types import FileInfo as FileInfo
    from atoll.files.types import GrepMatch as GrepMatch
    from atoll.files.types import UploadResult as UploadResult
    from atoll.files.types import WriteResult as WriteResult
    from atoll.guest.values import Opaque as Opaque
    from atoll.integrations.mcp_tools import MCPTools as MCPTools
    from atoll.log import SandboxLogger as SandboxLogger
    from atoll.memory.episodic import EpisodicMemory as EpisodicMemory
    from atoll.network import NetworkPolicy as NetworkPolicy
    from atoll.network import NetworkRequest as NetworkRequest
    from atoll.network import NetworkUse as NetworkUse
    from atoll.policy import Capability as Capability
    from atoll.policy import ExecutionPolicy as ExecutionPolicy
    from atoll.policy import Isolation as Isolation
    from atoll.policy import Mount as Mount
    from atoll.pool import Pool as Pool
    from atoll.pool import PoolSettings as PoolSettings
    from atoll.replserver.blocking import SyncREPLExecutor as SyncREPLExecutor
    from atoll.replserver.executor import REPLExecutor as REPLExecutor
    from atoll.replserver.messages import REPLResponse as REPLResponse
    from atoll.rlm.blocking import RLM as RLM
    from atoll.rlm.budget import Budget as Budget
    from atoll.rlm.budget import BudgetError as BudgetError
    from atoll.rlm.models.recorded import Recorder as Recorder
    from atoll.rlm.models.recorded import Replay as Replay
    from atoll.rlm.models.scripted import ScriptedModel as ScriptedModel
    from atoll.rlm.models.types import Completion as Completion
    from atoll.rlm.models.types import Message as Message
    from atoll.rlm.models.types import Model as Model
    from atoll.rlm.models.types import Usage as Usage
    from atoll.rlm.options import RLMConfig as RLMConfig
    from atoll.rlm.types import Answer as Answer
    from atoll.rlm.types import Ended as Ended
    from atoll.sandbox import BaseSandbox as BaseSandbox
    from atoll.sandbox import Sandbox as Sandbox
    from atoll.shell.blocking import LocalSandbox as LocalSandbox
    from atoll.shell.blocking import ShellSandbox as ShellSandbox
    from atoll.shell.protocol import SandboxBackendProtocol as SandboxBackendProtocol
    from atoll.state.envelope import StateInfo as StateInfo
    from atoll.state.envelope import describe_state as describe_state
    from atoll.state.store import SqliteStateStore as SqliteStateStore
    from atoll.state.store import StateStore as StateStore
    from atoll.sync import SyncSandbox as SyncSandbox
    from atoll.tools import Tool as Tool
    from atoll.tools import tool as tool
    from atoll.trajectory.reader import Trajectory as Trajectory
    from atoll.types import Artifact as Artifact
    from atoll.types import Display as Display
    from atoll.types import ExecuteResponse as ExecuteResponse
    from atoll.types import Outcome as Outcome
    from atoll.types import SandboxResult as SandboxResult
    from atoll.types import Variable as Variable
    from atoll.types import Variables as Variables
    from atoll.web.policy import WebPolicy as WebPolicy

__version__ = "0.1.0"

_HOMES = {
    "create_sandbox": "factory",
    "DaemonClientSandbox": "backends.daemon",
    "NativePythonSandbox": "backends.native",
    "GvisorSandbox": "backends.gvisor",
    "DirectPyodideSandbox": "backends.pyodide",
    "PyodideSandbox": "backends.pyodide",
    "SandboxConfig": "config",
    "Context": "context",
    "AtollError": "errors",
    "ArchiveError": "errors",
    "ArchiveLimitError": "errors",
    "WebError": "errors",
    "WebRefusedError": "errors",
    "BackendUnavailableError": "errors",
    "ConfigError": "errors",
    "IsolationError": "errors",
    "LimitUnsupportedError": "errors",
    "MemoryStoreError": "errors",
    "ModelError": "errors",
    "ModelRecordError": "errors",
    "ModelRefusedError": "errors",
    "ModelReplyError": "errors",
    "ModelTimeoutError": "errors",
    "ModelUnavailableError": "errors",
    "PackageError": "errors",
    "SandboxClosedError": "errors",
    "SandboxError": "errors",
    "SandboxStartError": "errors",
    "UnknownBackendError": "errors",
    "BusyError": "errors",
    "ExecutionTimeoutError": "errors",
    "SandboxLostError": "errors",
    "StateError": "errors",
    "UnsupportedError": "errors",
    "VariableError": "errors",
    "REPLEnvironment": "environment.blocking",
    "EnvironmentConfig": "environment.options",
    "REPLConfig": "environment.options",
    "Final": "environment.types",
    "Turn": "environment.types",
    "Evidence": "explore.evidence",
    "Coverage": "explore.ledger",
    "WebPolicy": "web.policy",
    "DownloadResult": "files.types",
    "EditResult": "files.types",
    "FileData": "files.types",
    "FileError": "files.types",
    "FileInfo": "files.types",
    "GrepMatch": "files.types",
    "UploadResult": "files.types",
    "WriteResult": "files.types",
    "Opaque": "guest.values",
    "SandboxLogger": "log",
    "EpisodicMemory": "memory.episodic",
    "Pool": "pool",
    "PoolSettings": "pool",
    "PythonSandbox": "backends.wasm",
    "run_untrusted_python": "backends.wasm",
    "Capability": "policy",
    "ExecutionPolicy": "policy",
    "Isolation": "policy",
    "Mount": "policy",
    "NetworkPolicy": "network",
    "NetworkRequest": "network",
    "NetworkUse": "network",
    "REPLExecutor": "replserver.executor",
    "SyncREPLExecutor": "replserver.blocking",
    "REPLResponse": "replserver.messages",
    "RLM": "rlm.blocking",
    "Budget": "rlm.budget",
    "BudgetError": "rlm.budget",
    "Recorder": "rlm.models.recorded",
    "Replay": "rlm.models.recorded",
    "ScriptedModel": "rlm.models.scripted",
    "Completion": "rlm.models.types",
    "Message": "rlm.models.types",
    "Model": "rlm.models.types",
    "Usage": "rlm.models.types",
    "RLMConfig": "rlm.options",
    "Answer": "rlm.types",
    "Ended": "rlm.types",
    "BaseSandbox": "sandbox",
    "Sandbox": "sandbox",
    "LocalSandbox": "shell.blocking",
    "ShellSandbox": "shell.blocking",
    "SandboxBackendProtocol": "shell.protocol",
    "StateInfo": "state.envelope",
    "describe_state": "state.envelope",
    "SqliteStateStore": "state.store",
    "StateStore": "state.store",
    "SyncSandbox": "sync",
    "MCPTools": "integrations.mcp_tools",
    "Approval": "environment.taint",
    "Origin": "environment.taint",
    "ChainReport": "environment.chain",
    "Invocation": "environment.invocations",
    "Tool": "tools",
    "tool": "tools",
    "Trajectory": "trajectory.reader",
    "Artifact": "types",
    "Display": "types",
    "ExecuteResponse": "types",
    "Outcome": "types",
    "SandboxResult": "types",
    "Variable": "types",
    "Variables": "types",
}

__all__ = ["__version__", "aio", *_HOMES]  # noqa: PLE0604 - the keys are strings


if not TYPE_CHECKING:  # a type checker would take any name for one that exists

    def __getattr__(name: str) -> Any:
        """Load a public name from its module on first use."""
        if name == "aio":
            return import_module("atoll.aio")
        if name not in _HOMES:
            raise AttributeError(f"module 'atoll' has no attribute {name!r}")
        value = getattr(import_module(f"atoll.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
