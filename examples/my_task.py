"""A task of one's own: problems made by a program. Run it with ``upslope train rloo --task my_task.py:Last``."""

from itertools import product

from upslope.tasks import Problem, Scores, TextTask, split_of


class Last(TextTask):
    """Write the last letter: ``l:fbe=`` -> ``e``."""

    name = "last"
    max_tokens = 3  # a letter, the stop token, and one to tell an answer that is too long

    def sample(self, count, split, rng):
        words = ["".join(letters) for letters in product("abcdefgh", repeat=3)]
        words = [word for word in words if split_of(f"l:{word}=") == split]
        return [Problem(f"l:{word}=", word[-1]) for word in rng.choice(words, count, replace=count > len(words))]

    def score(self, problems, responses):
        right = [response.strip() == problem.answer for problem, response in zip(problems, responses, strict=True)]
        return Scores(reward=[float(each) for each in right], correct=right)

    def describe(self):
        return "Write the last letter."
