"""Warm starts: zygotes that have libraries imported, and guests forked off them beforehand."""

from __future__ import annotations

from atoll.pool.pool import Pool, PoolSettings
from atoll.pool.sandbox import PooledSandbox

__all__ = ["Pool", "PoolSettings", "PooledSandbox"]
