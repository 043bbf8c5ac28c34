"""What runs in a Ray actor: a replica of the policy, made from what has travelled there. Ray is loaded with this module."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import tempfile
import warnings
from pathlib import Path

import numpy as np
import ray
import torch

from upslope.plain_data import JsonDict
from upslope.rollout.replica import Replica, failure
from upslope.runtime.messages import Message, decoded, encoded
from upslope.runtime.run_parcel import unpack_run
from upslope.runtime.shared_weights import views
from upslope.types import Assignment

LIFE = "life"
"""The group of an actor's threads that answers while another one samples."""
PREFIX = "upslope-worker-"
"""Begins the names of actors' temporary folders; their process follows."""


class SamplingActor:
    """What runs in an actor. Whatever goes wrong is said, not raised: Ray would wrap it.

    Args:
        maker: What makes the policy and the rollouts, as ``module:name``; it is given a folder and whether to trust its code.
    """

    def __init__(self, maker: str):
        self.maker = maker
        self.folder = ""
        self.replica: Replica

    def start(self, parcel: np.ndarray) -> bytes:
        """Unpacks what has travelled and makes a replica from it."""
        try:
            _sweep()
            self.folder = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")
            run = Path(self.folder) / "run"
            run.mkdir()
            unpack_run(parcel.tobytes(), run)
            # The machine of the run trusts the code that it sent; this one need not remember that.
            os.environ["XDG_STATE_HOME"] = self.folder
            module, _, name = self.maker.partition(":")
            self.replica = Replica(*getattr(importlib.import_module(module), name)(run, True))
            return encoded(Message("ready", _about_here()))
        except BaseException as problem:
            return encoded(failure(problem))

    def fulfil(self, asked: bytes, weights: np.ndarray | None) -> bytes:
        """Takes other weights, if there are some, and samples."""
        try:
            told = decoded(asked).data
            assignment = Assignment.from_table(told["assignment"])
            if weights is not None:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # the store's memory may not be written, and is not
                    room = torch.from_numpy(weights)
                self.replica.load(views(room, told["weights"]), assignment.version)
            return encoded(self.replica.answer(assignment))
        except Exception as problem:
            return encoded(failure(problem))

    @ray.method(concurrency_group=LIFE)
    def alive(self) -> None:
        """Answers, so that a long sample can be told from a hung actor."""

    @ray.method(concurrency_group=LIFE)
    def leave(self) -> None:
        """Leaves nothing behind; the actor is killed after this."""
        shutil.rmtree(self.folder, ignore_errors=True)
        _sweep()


def _sweep() -> None:
    """Deletes what killed actors have left on this machine."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _about_here() -> JsonDict:
    from upslope import __version__

    node = ray.get_runtime_context().get_node_id()
    return {
        "pid": os.getpid(), "host": platform.node(), "node": node, "versions": {"upslope": __version__, "torch": torch.__version__},
    }  # fmt: skip
