"""Worker processes: each framework and each subject runs in one of its own, and what is judged, in others.

A `Unit` is work on one subject, item by item. `run_units` sends units to an executor, an object with the interface
of `concurrent.futures.Executor`, and gives the answers as they come; `Local` is the executor on this machine. What
runs there is `execute(unit, settings)`: a process of ours does the items, and asks a process that imports the
framework for answers; where one of them dies, another one goes on, so that a death costs the item at hand.
"""

from conformance.workers.execute import execute
from conformance.workers.interpreters import Settings
from conformance.workers.local import Local
from conformance.workers.protocol import Unit
from conformance.workers.run import run_units

__all__ = ["Local", "Settings", "Unit", "execute", "run_units"]
