"""The agent's environment: a model explores by code, in any backend, and answers."""

from atoll.agent.environment.blocking import REPLEnvironment as REPLEnvironment
