"""A sandbox for what models write: namespaces, a user of its own, limits over all processes, a filter of system calls."""

from upslope.runtime.sandbox.limits import Finished, Limits, SandboxError
from upslope.runtime.sandbox.pool import Sandbox

__all__ = ["Finished", "Limits", "Sandbox", "SandboxError"]
