"""Worker processes: each subject runs in a process of its own, with its own interpreter.

A `Unit` is work on one subject, item by item. `run_units` sends units to an executor, an object with the interface
of `concurrent.futures.Executor`, and gives the answers as they come; `Local` is the executor on this machine. What
runs there is `execute(unit, settings)`: a process that imports one framework does the items, and another one goes on
where that process dies, so that a death costs the item at hand.
"""

from conformance.workers.execute import execute
from conformance.workers.interpreters import Settings
from conformance.workers.local import Local
from conformance.workers.run import run_units
from conformance.workers.unit import Unit

__all__ = ["Local", "Settings", "Unit", "execute", "run_units"]
