"""A reward of one's own: full marks for the right answer, a tenth for any other whole number."""


def score(prompts, responses, answers):
    """One number for each response; ``correct`` is what the evaluation counts."""
    said = [response.strip() for response in responses]
    correct = [float(text == answer) for text, answer in zip(said, answers, strict=True)]
    number = [float(text.isdecimal()) for text in said]
    reward = [max(right, 0.1 * form) for right, form in zip(correct, number, strict=True)]
    return {"reward": reward, "correct": correct, "number": number}
