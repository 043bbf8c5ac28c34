"""Engines by the name a user gives them."""

from __future__ import annotations

from upslope.errors import MethodError
from upslope.objective.references.speaking import speakers
from upslope.policies.language_model import LanguageModel
from upslope.rollout.decode.speculation import Speculate
from upslope.rollout.engine_gap import SamplingPrecision
from upslope.types import Engine, Method, Sampling


def make_engine(
    name: str, policy: LanguageModel, sampling: Sampling, method: Method, speculate: Speculate = "off",
    precision: SamplingPrecision = "auto",
) -> Engine:  # fmt: skip
    """The engine called ``torch``, ``vllm`` or by the address of a server, ready to sample so for this method.

    Args:
        speculate, precision: of our own engine (`upslope.rollout.engines.torch_engine.TorchEngine`).

    Raises:
        UserError: if it does not exist, cannot be reached, or cannot give what the sampling and the method ask for.
    """
    if name == "torch":
        from upslope.rollout.engines.torch_engine import TorchEngine

        return TorchEngine(policy, speculate, precision)
    _refuse_speakers(name, method)
    if name == "vllm":
        from upslope.rollout.engines.vllm_engine import VLLMEngine

        _refuse_without_entropy(name, method, VLLMEngine.gives_entropy)  # before minutes go into starting it
        return VLLMEngine(policy)
    from upslope.rollout.engines.server_engine import ServerEngine

    engine = ServerEngine(name, policy)
    engine.check(sampling)
    _refuse_without_entropy(name, method, engine.gives_entropy)
    return engine


def _refuse_speakers(name: str, method: Method) -> None:
    """Engines that hold the policy's weights alone sample for nobody else."""
    for path, others in speakers(method).items():
        raise MethodError(f"{path} of {method.name} lets {min(others)!r} sample answers, and --engine {name} holds only the "
                          "policy's weights. Take --engine torch.")  # fmt: skip


def _refuse_without_entropy(name: str, method: Method, given: bool) -> None:
    needing = [path for path, part in method.parts() if "behavior.entropy" in part.needs()]
    if needing and not given:
        raise MethodError(
            f"{needing[0]} of {method.name} needs 'behavior.entropy', the entropy of each distribution sampled from, which "
            f"--engine {name} does not return. Take --engine torch, or a server started with 'upslope serve'."
        )
