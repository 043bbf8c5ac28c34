"""What a decoder records, and stop strings found in it."""

from __future__ import annotations

import torch

from upslope.rollout.decode.record import Record, StopStrings


def test_a_stop_string_is_heard_behind_which_a_row_went_on_and_ended():
    said = {"a": 5, "b": 6, "c": 7}
    names = {number: letter for letter, number in said.items()}
    record = Record.blank(2, 6, 0, torch.device("cpu"))
    for row, text in enumerate(("abcab", "cacac")):  # several tokens at once, as a GPU draws them
        record.tokens[row, :5] = torch.tensor([said[letter] for letter in text])
        record.sampled[row, :5] = 1.0
        record.logp[row, :5] = -1.0
    heard = StopStrings(("bc",), lambda ids: "".join(names[number] for number in ids), 0)
    assert heard.listen(record, [0, 1]) == [True, False] and heard.rows == {0}
    assert record.tokens[0].tolist() == [5, 6, 7, 0, 0, 0] and record.sampled.sum(1).tolist() == [3.0, 5.0]
    assert record.logp[0, 3:].abs().sum() == 0
    assert heard.listen(record, [0, 1]) == [False, False], "nothing new was said"
    record.cut(1, 0, 0)
    record.tokens[1, :2], record.sampled[1, :2] = torch.tensor([6, 7]), 1.0
    assert heard.listen(record, [1]) == [False], "as far as this row was listened to"
    heard.forget([1])
    assert heard.listen(record, [1]) == [True], "it began again and says another thing"
