"""A reward for timing: an untrained model's answers differ in it, so every group has a signal."""


def score(prompts: list[str], responses: list[str], answers: list[str]) -> list[float]:
    """The share of letters in each answer."""
    return [sum(map(str.isalpha, response)) / max(len(response), 1) for response in responses]
