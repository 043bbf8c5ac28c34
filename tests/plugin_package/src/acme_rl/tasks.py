"""Tasks: a class for each entry point; what its constructor takes are the knobs of ``--task last-letter:length=2``."""

from dataclasses import dataclass
from itertools import product

from upslope.tasks import Problem, Scores, TextTask, split_of


@dataclass(frozen=True)
class LastLetter(TextTask):
    """Write the last letter: l:fbe= -> e."""

    length: int = 3

    max_tokens = 3  # a letter, the stop token, and one to tell an answer that is too long

    @property
    def name(self):
        return f"last-letter:length={self.length}"

    def sample(self, count, split, rng):
        words = ["".join(letters) for letters in product("abcdefgh", repeat=self.length)]
        words = [word for word in words if split_of(f"l:{word}=") == split]
        return [Problem(f"l:{word}=", word[-1]) for word in rng.choice(words, count, replace=count > len(words))]

    def score(self, problems, responses):
        right = [response.strip() == problem.answer for problem, response in zip(problems, responses, strict=True)]
        return Scores(reward=[float(each) for each in right], correct=right)

    def describe(self):
        return "Write the last letter."
