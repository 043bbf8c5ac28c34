"""A worker of ``bench/async_step.py``: it samples for the step that is measured there."""

from __future__ import annotations

import json
import sys
from typing import Any

from text_work import TextWork


def made(words: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The policy and the rollout of the work."""
    from async_step import rollout_of

    from upslope.runtime.threads import use_threads

    use_threads(1)
    given = TextWork(**words)
    policy = given.policy()
    return policy, {"": rollout_of(given, policy, ahead=1)}


if __name__ == "__main__":
    from upslope.run.worker import serve

    sys.exit(serve(int(sys.argv[1]), lambda: made(json.loads(sys.argv[2]))))
