"""Rewards: a function for each entry point."""


def letters(prompts, responses, answers):
    """Full marks for the answer, a little for a letter."""
    said = zip(responses, answers, strict=True)
    return [1.0 if text.strip() == answer else 0.1 * text.strip().isalpha() for text, answer in said]
