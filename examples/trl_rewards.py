"""Rewards as TRL's GRPOTrainer takes them; they work here as they are."""


def right(completions, solution, **kwargs):
    """Everything comes by name, each column of the data as a list."""
    return [float(text.strip() == expected) for text, expected in zip(completions, solution, strict=True)]


def digits(completions, **kwargs):
    """``None``: does not apply to this row."""
    return [float(text.strip().isdecimal()) if text.strip() else None for text in completions]
