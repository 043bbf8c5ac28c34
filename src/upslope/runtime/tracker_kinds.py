"""The trackers that have a name: each a few calls of its package.

All take the run's folder, the whole plan as plain data, the user's options and the id that is this run's own. Where a run goes on
from a checkpoint, steps that are made again come again with the same numbers.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from upslope.plain_data import JsonDict

PROJECT = "upslope"
SAMPLES = "completions"
"""What the samples of a step are called, as in TRL: ``samples`` is a metric, their number."""
LONGEST_PARAMETER = 500
"""Characters of a value that MLflow takes as a parameter."""


def numbers(values: JsonDict, prefix: str = "") -> dict[str, float]:
    """What can be drawn of some values."""
    plain = {key: value for key, value in values.items() if isinstance(value, (int, float)) and not isinstance(value, bool)}
    return {f"{prefix}{key}": value for key, value in plain.items()}


def flat(table: JsonDict, prefix: str = "") -> dict[str, str]:
    """Nested tables as one, their keys joined by dots."""
    found: dict[str, str] = {}
    for key, value in table.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": str(value)}
    return found


def columns_of(rows: list[JsonDict]) -> list[str]:
    """All columns that some of the rows have."""
    return list(dict.fromkeys(key for row in rows for key in row))


def cells(rows: list[JsonDict]) -> list[list[object]]:
    """Rows as lists, one value per column; what is no number or text is written as JSON."""
    names = columns_of(rows)
    return [[_cell(row.get(name)) for name in names] for row in rows]


def _cell(value: object) -> object:
    return value if value is None or isinstance(value, (str, int, float)) else json.dumps(value, default=str)


class TensorBoard:
    """Event files in the run's ``tensorboard`` folder, or below ``dir``."""

    def __init__(self, folder: Path, config: JsonDict, options: dict[str, str], own: str):
        from torch.utils.tensorboard import SummaryWriter

        place = Path(options["dir"]).expanduser() / f"{folder.name}-{own[:6]}" if "dir" in options else folder / "tensorboard"
        self.writer: Any = SummaryWriter(str(place))  # type: ignore[no-untyped-call]
        self.writer.add_text("config", _block(config))

    def log(self, step: int, metrics: JsonDict) -> None:
        for key, value in numbers(metrics).items():
            self.writer.add_scalar(key, value, step)

    def log_evaluation(self, step: int, result: JsonDict) -> None:
        self.log(step, numbers(result, "eval/"))

    def log_samples(self, step: int, rows: list[JsonDict]) -> None:
        self.writer.add_text(SAMPLES, "\n\n".join(map(_block, rows)), step)

    def log_summary(self, summary: JsonDict) -> None:
        self.writer.add_text("summary", _block(summary))

    def close(self) -> None:
        self.writer.close()


def _block(value: JsonDict) -> str:
    """Plain data as a block of Markdown."""
    lines = json.dumps(value, indent=1, default=str, ensure_ascii=False).splitlines()
    return "\n".join(f"    {line}" for line in lines)


class WandB:
    """A run at Weights & Biases. Where it goes on, so does the one there."""

    def __init__(self, folder: Path, config: JsonDict, options: dict[str, str], own: str):
        import wandb

        self.wandb = wandb
        self.run = wandb.init(
            project=options.get("project", PROJECT),
            entity=options.get("entity"),
            group=options.get("group"),
            tags=options["tags"].split("+") if "tags" in options else None,
            name=options.get("name", folder.name),
            config=config,
            dir=str(folder),
            resume="allow",
            id=own,
        )

    def log(self, step: int, metrics: JsonDict) -> None:
        self.run.log(numbers(metrics), step=step)

    def log_evaluation(self, step: int, result: JsonDict) -> None:
        self.run.log(numbers(result, "eval/"), step=step)

    def log_samples(self, step: int, rows: list[JsonDict]) -> None:
        self.run.log({SAMPLES: self.wandb.Table(columns=list[str | int](columns_of(rows)), data=cells(rows))}, step=step)

    def log_summary(self, summary: JsonDict) -> None:
        self.run.summary.update(summary)

    def close(self) -> None:
        self.run.finish()


class Trackio:
    """A run of trackio: on this machine, or with ``space`` on the Hugging Face hub. It knows runs by name, so that gets the id."""

    def __init__(self, folder: Path, config: JsonDict, options: dict[str, str], own: str):
        with _no_stdout():
            import trackio

            self.trackio = trackio
            self.run: Any = trackio.init(
                project=options.get("project", PROJECT),
                name=f"{options.get('name', folder.name)}-{own[:6]}",
                group=options.get("group"),
                space_id=options.get("space"),
                config=config,
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def log(self, step: int, metrics: JsonDict) -> None:
        self.run.log(numbers(metrics), step=step)

    def log_evaluation(self, step: int, result: JsonDict) -> None:
        self.run.log(numbers(result, "eval/"), step=step)

    def log_samples(self, step: int, rows: list[JsonDict]) -> None:
        self.run.log({SAMPLES: self.trackio.Table(columns=columns_of(rows), data=cells(rows))}, step=step)

    def log_summary(self, summary: JsonDict) -> None:
        self.run.log(numbers(summary, "summary/"), step=summary["steps"])

    def close(self) -> None:
        with _no_stdout():
            self.trackio.finish()  # of the run alone it would be finished, and said to be, once more when Python ends


@contextlib.contextmanager
def _no_stdout() -> Iterator[None]:
    """What a package prints goes to stderr: stdout has the folder of the run, for scripts."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


class MLflow:
    """A run of MLflow, at ``uri`` or where MLflow itself would write (``MLFLOW_TRACKING_URI``)."""

    def __init__(self, folder: Path, config: JsonDict, options: dict[str, str], own: str):
        from mlflow import MlflowClient

        self.client = MlflowClient(options.get("uri"))
        name = options.get("experiment", PROJECT)
        found = self.client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self.client.create_experiment(name)
        # It gives its runs their ids itself: ours is a tag, by which the run is found again.
        known = self.client.search_runs([experiment], f"tags.upslope_run = '{own}'", max_results=1)
        tags = {"upslope_run": own}
        run = known[0] if known else self.client.create_run(experiment, run_name=options.get("name", folder.name), tags=tags)
        self.id = run.info.run_id
        if not known:
            for key, value in flat(config).items():
                self.client.log_param(self.id, _allowed(key), value[:LONGEST_PARAMETER])
            self.client.log_dict(self.id, json.loads(json.dumps(config, default=str)), "config.json")
        self.client.update_run(self.id, status="RUNNING")
        self.ended = "KILLED"

    def log(self, step: int, metrics: JsonDict) -> None:
        from mlflow.entities import Metric

        now = _milliseconds()
        self.client.log_batch(self.id, [Metric(_allowed(key), value, now, step) for key, value in numbers(metrics).items()])

    def log_evaluation(self, step: int, result: JsonDict) -> None:
        self.log(step, numbers(result, "eval/"))

    def log_samples(self, step: int, rows: list[JsonDict]) -> None:
        self.client.log_text(self.id, json.dumps(rows, indent=1, default=str), f"{SAMPLES}/step-{step:06d}.json")

    def log_summary(self, summary: JsonDict) -> None:
        self.client.log_dict(self.id, summary, "summary.json")
        self.ended = "FINISHED"

    def close(self) -> None:
        self.client.set_terminated(self.id, self.ended)


def _allowed(key: str) -> str:
    """A name as MLflow takes it."""
    return "".join(letter if letter.isalnum() or letter in "_-./ " else "_" for letter in key)


def _milliseconds() -> int:
    import time

    return int(time.time() * 1000)
