"""Warm starts: zygotes that have libraries imported, and guests forked off them beforehand."""

from __future__ import annotations

from atoll.hosting.pool.pool import Pool, PoolSettings
from atoll.hosting.pool.sandbox import PooledSandbox
from atoll.hosting.pool.tiers import TIERS

__all__ = ["TIERS", "Pool", "PoolSettings", "PooledSandbox"]
