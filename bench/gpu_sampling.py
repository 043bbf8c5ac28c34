"""Sampling on a GPU, beside `transformers`: ``python bench/gpu_sampling.py [--random-weights]``.

SmolLM2-135M in bfloat16, 1024 answers (128 prompts x 8) of 100 tokens to prompts of 28: 128 positions, no answer stops, and the
log-probability of each drawn token is recorded. The other side is the better of ``generate`` as it comes and of a loop written
here: a static cache and one CUDA graph around a decode step of the same `transformers` model, drawing included.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from side_by_side import arguments, main
from sides import Clock, Row, Setting, Side
from text_work import TextWork

PROMPT, NEW = 28, 100


@dataclass(frozen=True)
class SamplingWork:
    """Prompts to continue; ``text`` says with which model."""

    text: TextWork
    prompts: int = 128
    samples: int = 8

    @property
    def rows(self) -> int:
        return self.prompts * self.samples

    def policy(self) -> Any:
        import torch

        return self.text.policy().to("cuda", torch.bfloat16)

    def ids(self, size: int) -> Any:
        """``[prompts, PROMPT]`` random ids, none twice in a row of draws: what a prompt says does not matter here."""
        import torch

        return torch.randint(3, size, (self.prompts, PROMPT), generator=torch.Generator().manual_seed(0))


def run_ours(clock: Clock, given: SamplingWork, setting: Setting) -> None:
    """Calls of the torch engine, as a rollout makes them."""
    import torch

    from upslope.rollout.engines.torch_engine import TorchEngine
    from upslope.types import Sampling

    policy = given.policy()
    engine, prompts = TorchEngine(policy), given.ids(policy.model.config.vocab_size).tolist()
    uniforms = torch.rand(given.rows, NEW, generator=torch.Generator().manual_seed(1))
    clock.ready()
    while True:
        found = engine.generate(prompts, given.samples, Sampling(max_tokens=NEW), uniforms)
        engine.sync(policy)  # as after an update: nothing prepared from old weights may be kept
        clock.tick(rows=len(found.tokens), tokens=int(found.sampled.sum()), logp=float(found.logp.isfinite().sum()))


def run_generate(clock: Clock, given: SamplingWork, setting: Setting) -> None:
    """`generate` with its own cache, the scores kept until the log-probabilities are taken from them."""
    import torch

    if setting.options.get("graph"):
        return run_graph(clock, given)
    policy = given.policy()
    ids = given.ids(policy.model.config.vocab_size).repeat_interleave(given.samples, 0).cuda()
    how = {"max_new_tokens": NEW, "do_sample": True, "top_k": 0, "top_p": 1.0, "pad_token_id": policy.pad_id}
    clock.ready()
    while True:
        with torch.no_grad():
            found = policy.model.generate(
                ids, attention_mask=torch.ones_like(ids), return_dict_in_generate=True, output_logits=True, **how
            )
            new = found.sequences[:, PROMPT:]
            logp = torch.stack([_logp(each, token) for each, token in zip(found.logits, new.unbind(1), strict=True)], 1)
        clock.tick(rows=len(new), tokens=new.numel(), logp=float(logp.isfinite().sum()))


def _logp(logits: Any, token: Any) -> Any:
    """Of the drawn tokens, in float32."""
    return logits.float().log_softmax(-1).gather(1, token.unsqueeze(1)).squeeze(1)


def attend_by_group(model: Any) -> None:
    """Attention without a copy of keys and values for each query head, which would be half of the loop's time.

    `transformers` repeats them where there is a mask, as a static cache always has. While one token is decoded, the query heads
    that share a key head can stand where several positions would: the same numbers, nothing repeated.
    """
    import torch
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    def grouped(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **how: Any) -> tuple[Any, None]:
        rows, heads, positions, size = query.shape
        if positions > 1:
            return sdpa_attention_forward(module, query, key, value, attention_mask, **how)
        by_group = query.view(rows, key.shape[1], heads // key.shape[1], size)
        found = torch.nn.functional.scaled_dot_product_attention(
            by_group, key, value, attn_mask=attention_mask, scale=how.get("scaling")
        )
        return found.reshape(rows, 1, heads, size), None

    AttentionInterface.register("by_group", grouped)
    AttentionMaskInterface.register("by_group", sdpa_mask)
    model.set_attn_implementation("by_group")


def run_graph(clock: Clock, given: SamplingWork) -> None:
    """The plain fast loop: prompts in one pass into a static cache, then one graph replayed for each token."""
    import torch
    from transformers import StaticCache

    policy = given.policy()
    model, rows = policy.model, given.rows
    attend_by_group(model)
    ids = given.ids(model.config.vocab_size).repeat_interleave(given.samples, 0).cuda()
    cache = StaticCache(config=model.config, max_cache_len=PROMPT + NEW)
    token = torch.zeros(rows, 1, dtype=torch.long, device="cuda")
    place = torch.zeros(1, dtype=torch.long, device="cuda")
    tokens = torch.zeros(rows, NEW, dtype=torch.long, device="cuda")
    logps = torch.zeros(rows, NEW, device="cuda")

    def draw(logits: Any) -> None:
        """Draws a token into its column, by the largest of log-probability plus Gumbel noise: nothing waits for the host."""
        logp = logits.float().log_softmax(-1)
        drawn = (logp - torch.empty_like(logp).exponential_().log()).argmax(-1, keepdim=True)
        token.copy_(drawn)
        column = place - PROMPT + 1
        tokens.index_copy_(1, column, drawn)
        logps.index_copy_(1, column, logp.gather(1, drawn))

    def decode() -> None:
        place.add_(1)
        draw(model(input_ids=token, position_ids=place.unsqueeze(0), past_key_values=cache, use_cache=True).logits[:, -1])

    def prefill() -> None:
        cache.reset()
        place.fill_(PROMPT - 1)
        draw(model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1])

    with torch.no_grad():
        prefill()
        for _ in range(2):  # kernels are chosen before the graph is taken
            decode()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            decode()
        clock.ready()
        while True:
            prefill()
            for _ in range(NEW - 1):
                graph.replay()
            clock.tick(rows=rows, tokens=tokens.numel(), logp=float(logps.isfinite().sum()))


ROW = Row(
    name="gpu_sampling",
    work="sampling with SmolLM2-135M in bfloat16: 1024 rows, 28 + 100 positions, vocabulary 49,152, log-probabilities recorded",
    unit="tokens/s",
    rate="tokens",
    ours=Side("upslope", run_ours, (Setting("torch engine"),)),
    peer=Side(
        "transformers",
        run_generate,
        (Setting("generate"), Setting("static cache and CUDA graph", options={"graph": True})),
        package="transformers",
    ),
    given=SamplingWork(TextWork(model="smollm2", device="cuda")),
    window=2,
    exact=("rows", "tokens", "logp"),
    least=400_000.0,
    goal="at least 400,000 tokens/s is wanted",
    device="cuda",
)

if __name__ == "__main__":
    parser = arguments(ROW)
    parser.add_argument("--random-weights", action="store_true", help="the model's sizes with random weights: needs no file")
    flags = parser.parse_args()
    if flags.random_weights:
        ROW = replace(ROW, work=f"{ROW.work}; random weights", given=SamplingWork(TextWork(model="random", device="cuda")))
    main(ROW, flags)
