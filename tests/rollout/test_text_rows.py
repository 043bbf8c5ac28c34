"""Items of an answer that is a list: which tokens are whose, and what each is paid, whatever the tokenizer made of separators."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from upslope.rollout.text_rows import item_ends, item_numbers, pay_items
from upslope.types import Trajectories, View

TOKENS = ["<pad>", "a", "b", "c", ",", ",,", ",,,", "a,", ",b"]
"""As SmolLM2's tokenizer, some hold several separators, or one with text beside it."""


@pytest.fixture(scope="module")
def policy():
    tokenizer = Tokenizer(models.WordLevel({text: number for number, text in enumerate(TOKENS)}, unk_token="<pad>"))
    tokenizer.decoder = decoders.Fuse()
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>")
    return SimpleNamespace(decode=lambda ids: made.decode(ids, skip_special_tokens=True))


def ids(*words):
    return [TOKENS.index(word) for word in words]


def answers(*rows, width=None):
    """Rows of tokens, padded, and where they were sampled."""
    width = width or max(map(len, rows))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    return tokens, torch.tensor([[1.0] * len(row) + [0.0] * (width - len(row)) for row in rows])


def paid(policy, rows, worth, width=None):
    """What each token is paid."""
    tokens, sampled = answers(*rows, width=width)
    batch = Trajectories(
        sampled=sampled, reward=torch.zeros(len(rows)), group=torch.zeros(len(rows), dtype=torch.int64),
        task=torch.zeros(len(rows), dtype=torch.int64), behavior=View(torch.zeros_like(sampled)), action=tokens,
        segment={"item": item_numbers(policy, tokens, ",")},
    )  # fmt: skip
    return pay_items(batch, worth).step_reward.tolist()


def test_a_token_with_two_separators_ends_two_items(policy):
    assert policy.decode(ids("a", ",,", "b", ",", "c")) == "a,,b,c"
    tokens, _ = answers(ids("a", ",,", "b", ",", "c"), ids("a", ",", ",", "b", ","))
    assert item_ends(policy, tokens, ",").tolist() == [[0, 2, 0, 1, 0], [0, 1, 1, 0, 1]]
    assert item_numbers(policy, tokens, ",").tolist() == [[0, 0, 2, 2, 3], [0, 0, 1, 2, 2]]


def test_later_items_get_their_own_rewards(policy):
    worth = [1.0, 0.0, 3.0, 4.0]  # of a, of nothing, of b and of c, as the task splits the text
    one, other = paid(policy, [ids("a", ",,", "b", ",", "c"), ids("a", ",", ",", "b", ",", "c")], [worth, worth])
    assert one == [0, 1, 0, 3, 4, 0] and other == [0, 1, 0, 0, 3, 4]


def test_what_an_empty_item_is_worth_goes_to_the_token_that_made_it(policy):
    one, other = paid(policy, [ids("a", ",,,", "b"), ids("a", ",,", "b")], [[1.0, -2.0, -4.0, 8.0], [1.0, -2.0]])
    assert one == [0, -5, 8] and other == [0, -1, 0], "items beyond those asked for are worth nothing"
    one, other = (paid(policy, [ids("a", ",,")], [[1.0, -2.0, -4.0]], width) for width in (2, 5))
    assert one == [[0, 1]] and other == [[0, 1, 0, 0, 0]], "behind the last token no item was begun, cut off or not"


@pytest.mark.parametrize("seed", range(20))
def test_any_answer_is_cut_as_its_text_is(policy, seed):
    rng = np.random.default_rng(seed)
    row = [int(token) for token in rng.integers(1, len(TOKENS), size=12)]
    numbers = item_numbers(policy, torch.tensor([row]), ",")[0].tolist()
    assert numbers == [policy.decode(row[:position]).count(",") for position in range(len(row))]
    last = TOKENS.index("c")
    items = policy.decode([*row, last]).split(",")
    worth = [float(2**number) for number in range(len(items))]
    (amounts,) = paid(policy, [[*row, last]], [worth])
    assert sum(amounts) == sum(worth), "every item is paid once"
