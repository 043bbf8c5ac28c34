"""A run of text that takes a second or two, for tests of where it is sampled."""

SMALL = {
    "task": "reverse:length=2", "model": "tiny:layers=1,width=16", "steps": 4, "tasks_per_step": 8, "samples_per_task": 4,
    "warm_start": 0.1, "eval_problems": 8, "lr": 1e-3, "warmup": 0, "threads": 1, "record": "none",
}  # fmt: skip
