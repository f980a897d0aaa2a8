"""From a graph to a way of running it: lifetimes of values, and a place in memory for each."""

from fuse.planner.lifetime import Buffer, Interval, elementwise
from fuse.planner.plan import MemoryPlan, Peak, Slot, Unplanned, label, plan_memory

__all__ = [
    "Buffer",
    "Interval",
    "MemoryPlan",
    "Peak",
    "Slot",
    "Unplanned",
    "elementwise",
    "label",
    "plan_memory",
]
