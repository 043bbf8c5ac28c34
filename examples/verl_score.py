"""A reward as verl's custom_reward_function takes it; it works here as it is."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """Called row by row; ``score`` is learned from, other numbers are logged."""
    said = solution_str.strip()
    return {"score": float(said == ground_truth), "number": float(said.isdecimal())}
