"""The parity check of a model that was just loaded: a few tokens, against one whole pass of `transformers` itself.

Our own decoder is checked in learning and in sampling; if it is off, the model is left to `transformers`, and that is said. What
`transformers` computes in pieces, through a cache and with padding, is checked too: some models do that wrongly or not at all,
and a model whose samples are not its own cannot be trained.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import math
import platform
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from upslope.errors import UserError
from upslope.policies import load_language_model
from upslope.policies.forward.activation_cache import KeptPasses
from upslope.policies.given import GivenModel
from upslope.policies.language_model import LanguageModel
from upslope.policies.smollm2 import cache_folder
from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.rollout.text_rows import left_padded
from upslope.types import Trajectories, View

TOKENS = 8
"""Of each answer that is compared."""
TEXTS = (
    ("The capital of France is", " Paris, and that of Italy is Rome, as every child knows."),
    ("The capital of France is", " a large and old city on the river Seine, famous for its towers."),
    ("Two and two", " make four, and three and three make six, and so it goes on."),
)
"""Prompts and answers: two rows share their prompt, the third has to be padded. Text as a run would give it, and not any tokens:
where a model has never been, float32 alone moves its log-probabilities by most of the gap that is allowed."""
LARGEST_GAP = 1e-4
"""Between log-probabilities, both in float32."""
LARGE = 1_000_000_000
"""Parameters from which on only a model's first and last layer are compared."""


def load_checked(
    spec: str | GivenModel, seed: int, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> LanguageModel:
    """As `upslope.policies.load_language_model`, and looked at; of a model given as an object a copy, on the CPU.

    ``tiny`` is not: it was made a moment ago, of the same few lines as ever, and is to begin at once. What was found right once is
    not looked at again until the model's files, this code or torch have changed.
    """
    if isinstance(spec, GivenModel):
        return check_policy(spec.policy())
    policy = load_language_model(spec, seed, device, dtype)
    if spec.partition(":")[0] == "tiny":
        return policy
    mark = _mark_of(policy.source)
    if mark is not None and mark.exists():
        return policy
    policy = check_policy(policy)
    if policy.plain and dtype != torch.float32:  # `transformers` computes in the precision it is given
        policy = load_language_model(spec, seed)
        policy.plain = True
    if mark is not None and not policy.plain:
        with contextlib.suppress(OSError):  # it is looked at again next time
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
    return policy


def _mark_of(folder: Path | None) -> Path | None:
    """The file that says of this very model, computed by this very code, that it was found right."""
    if folder is None:
        return None
    found = hashlib.sha256(
        f"{platform.machine()} {platform.python_version()} {torch.__version__} {transformers.__version__}".encode()
    )
    try:
        for file in sorted(path for path in folder.iterdir() if path.is_file()):
            known = file.stat()
            found.update(f"{file.name} {known.st_size} {known.st_mtime_ns}".encode())
        for part in ("policies", "rollout"):
            for file in sorted((Path(__file__).parents[1] / part).rglob("*.py")):
                found.update(file.read_bytes())
    except OSError:
        return None
    return cache_folder() / "found-right" / found.hexdigest()


def check_policy(policy: LanguageModel) -> LanguageModel:
    """The policy, left to `transformers` (``plain``) with a warning if our own decoder computes it differently.

    Nothing of the policy changes but that, no random number is drawn, and what is copied is free again afterwards.

    Raises:
        UserError: if `transformers` itself cannot sample from the model as it reads it.
    """
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.no_grad():
        if policy.body is not None:
            gap = _own_gap(policy, torch.float32)
            # Of a model of a hundred million parameters float32 moves log-probabilities by half of what is allowed, of a large one
            # perhaps by more. That is no mistake, and in float64 it is gone.
            gap = gap if gap <= LARGEST_GAP else _own_gap(policy, torch.float64)
            if gap <= LARGEST_GAP:
                return policy
            policy.plain = True
        _check_plain(_on_cpu(policy))
    if policy.plain:
        warnings.warn(
            f"{policy.name!r} runs through transformers, which is right but slower: our own decoder's log-probabilities "
            f"differ by {gap:.2g} from it, more than {LARGEST_GAP:g}.",
            stacklevel=2,
        )
    return policy


def _own_gap(policy: LanguageModel, dtype: torch.dtype) -> float:
    """By how much our own decoder is off; not a number if `transformers` cannot say."""
    small = _copied(policy, dtype)
    rows = probe_rows(small)
    try:
        expected = whole_passes(small, rows)
    except Exception:  # a config that transformers cannot work with either; it will be told of the plain path
        return math.nan
    return _gap(small, rows, expected)


def _check_plain(policy: LanguageModel) -> None:
    """Refuses a model whose samples, drawn through its cache, are not those of its whole pass."""
    kind = type(policy.model).__name__
    other = "Take a decoder such as Llama, Qwen, Gemma, Mistral, GPT-2 or OPT."
    rows = probe_rows(policy)
    try:
        policy.token_budget(), TorchEngine(policy)._row_bytes(TOKENS)  # some configs have no such sizes for the model as a whole
        gap = _gap(policy, rows, whole_passes(policy, rows))
    except UserError as problem:
        raise UserError(f"a {kind} cannot be trained here: {problem} {other}") from problem
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as problem:  # whatever a model's own code makes of arguments it does not know
        said = str(problem).strip().splitlines() or [""]
        raise UserError(f"a {kind} cannot be trained here: it failed on {TOKENS} tokens "
                        f"({type(problem).__name__}: {said[0][:200]}). {other}") from problem  # fmt: skip
    if not gap <= LARGEST_GAP and not _is_rounding(policy, rows, gap):
        raise UserError(f"a {kind} cannot be trained here: token by token its log-probabilities differ by {gap:.2g} from those of "
                        f"a whole pass, so it would learn from samples that are not its own. {other}")  # fmt: skip


def _is_rounding(policy: LanguageModel, rows: Trajectories, gap: float) -> bool:
    """Whether a gap is gone in float64; of models that are too large for that, or compute in float32 only, whether it is small."""
    if next(policy.model.parameters()).dtype.itemsize < 4:
        return True  # half precision rounds by more than any mistake worth finding; models are loaded in float32
    if policy.parameter_count() <= LARGE:
        precise = copy.copy(policy)
        precise.kept, precise.model = KeptPasses(), copy.deepcopy(policy.model).double()
        with contextlib.suppress(RuntimeError):
            return _gap(precise, rows, whole_passes(precise, rows)) <= LARGEST_GAP
    return gap <= 10 * LARGEST_GAP


def probe_rows(policy: LanguageModel) -> Trajectories:
    """Rows of prompts and answers to compare."""
    prompts = policy.encode_all([prompt for prompt, _ in TEXTS])
    answers = [ids[:TOKENS] for ids in policy.tokenizer([answer for _, answer in TEXTS], add_special_tokens=False).input_ids]
    vocabulary, used = policy.model.get_input_embeddings().weight.shape[0], {token for ids in (*prompts, *answers) for token in ids}
    if max(used) >= vocabulary:
        raise UserError(
            f"the tokenizer of {policy.name!r} gives the id {max(used)}, and the model has only {vocabulary} embeddings: "
            "they do not belong together. Copy both from the same place."
        )
    if min(map(len, answers)) < TOKENS or len({token for ids in answers for token in ids}) < TOKENS:
        # A tokenizer that does not read English: ids from all over the vocabulary.
        ids = [(number * 7919 + 3) % vocabulary for number in range(5 + len(TEXTS) * TOKENS)]
        prompts, answers = [ids[:5], ids[:5], ids[:2]], [ids[5 + row * TOKENS :][:TOKENS] for row in range(len(TEXTS))]
    sampled = torch.ones(len(answers), TOKENS)
    rows = Trajectories(
        sampled=sampled,
        reward=torch.zeros(len(answers)),
        group=torch.tensor([0, 0, 1]),
        task=torch.zeros(len(answers), dtype=torch.int64),
        behavior=View(torch.zeros_like(sampled)),
        action=torch.tensor(answers),
        inputs=left_padded(prompts, policy.pad_id),
        horizon=TOKENS,
    )
    return rows.to(policy.device)


def whole_passes(policy: LanguageModel, rows: Trajectories) -> Tensor:
    """Log-probabilities ``[N, T]`` of the answers by `transformers`, each row alone, without cache, mask or padding."""
    assert rows.action is not None
    found = []
    for prompt, mask, answer in zip(rows.inputs.prompt, rows.inputs.prompt_mask, rows.action, strict=True):
        ids = torch.cat([prompt[mask > 0], answer])
        logits = policy.model(input_ids=ids.unsqueeze(0), use_cache=False).logits[0, -len(answer) - 1 : -1]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        found.append(logits.log_softmax(1).gather(1, answer.unsqueeze(1)).squeeze(1))
    return torch.stack(found).float()


def _gap(policy: LanguageModel, rows: Trajectories, expected: Tensor) -> float:
    """The largest difference of what learning and sampling compute from what is expected."""
    learned = (policy.evaluate(rows).logp - expected).abs().max()
    sampled = TorchEngine(policy).probe(rows)
    return float(torch.maximum(learned, torch.full_like(learned, sampled)))  # what is no number stays none


def _on_cpu(policy: LanguageModel) -> LanguageModel:
    """The policy with weights in float32 on the CPU: where it is elsewhere already, a copy."""
    if policy.device.type == "cpu":
        return policy
    beside = copy.copy(policy)
    beside.kept, beside._body, beside.heads = KeptPasses(), None, {}
    beside.model = copy.deepcopy(policy.model).to("cpu", torch.float32)
    return beside


def _copied(policy: LanguageModel, dtype: torch.dtype) -> LanguageModel:
    """The policy on the CPU with a model of its own in this precision, of a large one the first and the last layer only.

    Weights that are there in this precision already are not copied but shared.
    """
    model = policy.model.get_base_model() if hasattr(policy.model, "get_base_model") else policy.model
    stack, layers = model.model, list(model.model.layers)
    if policy.parameter_count() * dtype.itemsize > LARGE * torch.float32.itemsize and len(layers) > 2:
        layers = [layers[0], layers[-1]]
    kept = (stack.embed_tokens, stack.norm, model.lm_head, *layers)
    tensors = [tensor for part in kept for tensor in part.parameters()]
    memo: dict[int, Any] = {id(each): nn.Parameter(each.detach().to("cpu", dtype), requires_grad=False) for each in tensors}
    few: Any = nn.ModuleList(copy.deepcopy(layer, memo) for layer in layers)
    memo[id(stack.layers)] = few
    small = copy.copy(policy)
    small.model, small.heads, small._body = copy.deepcopy(model, memo).to("cpu"), {}, None
    small.kept, small.precise = KeptPasses(), True
    config = small.model.config
    config.num_hidden_layers = len(few)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[: len(few)]
    for number, layer in enumerate(few):
        layer.self_attn.layer_idx = number
    return small
