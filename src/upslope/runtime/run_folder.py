"""The folder of a run: what was asked for, what was measured, and checkpoints to go on from.

``run.toml`` is the whole plan; ``metrics.jsonl``, ``samples.jsonl`` and ``rollouts.jsonl`` grow a line at a time; a checkpoint
remembers how many lines there were, so that going on from it drops exactly what came after. ``rollouts/`` has a file for each line
of the last. A run begins in a folder that is new or empty: nothing in it is anybody else's to lose.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from upslope.errors import UserError
from upslope.plain_data import JsonDict
from upslope.runtime import run_lock
from upslope.runtime.checkpoint_files import CheckpointReader, Damaged
from upslope.runtime.files import write_bytes, write_text
from upslope.runtime.toml_files import parse_toml

FORMAT = 3
"""Of the folder, in its ``run.toml``. From 2 on every checkpoint has digests; folders before that say nothing. From 3 on parts are
named by kind and class, before that by module and class."""
EMPTY = b"{}"
"""What stands in a log where a line was damaged or is gone."""
PROBLEMS = "problems.jsonl"
"""Of runs that choose or make their problems."""
LOGS = ("metrics.jsonl", "samples.jsonl", "rollouts.jsonl", PROBLEMS)
MOST_UNPACKED = 64 * 2**20
"""Bytes of a step's rollouts that are read: beyond that it is no record of ours, or one too large to look at."""


class RunFolder:
    """Paths and logs of one run."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.lines = dict.fromkeys(LOGS, 0)
        self.marks: JsonDict = {}
        """What every line of the logs says as well, of a run that nobody should take for an ordinary one."""

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @classmethod
    def create(cls, path: str | Path | None, name: str) -> RunFolder:
        """A new folder: the one asked for, which must be new or empty, or ``runs/name``, numbered if that is taken."""
        if path is not None:
            folder = check_new(path)
            folder.mkdir(parents=True, exist_ok=True)
            return cls(folder)
        number = 1
        while True:
            candidate = Path("runs") / (name if number == 1 else f"{name}-{number}")
            try:
                candidate.mkdir(parents=True)
                return cls(candidate)
            except FileExistsError:
                number += 1

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """An existing run."""
        folder = cls(path)
        if not (folder.path / "run.toml").is_file():
            raise UserError(f"{path} is not a run: it has no run.toml. A run is a folder that 'upslope train' made.")
        return folder

    def table(self) -> JsonDict:
        """What ``run.toml`` says, as plain tables; nothing it names is loaded."""
        file = self.path / "run.toml"
        try:
            return parse_toml(file.read_bytes().decode("utf-8"))
        except (OSError, ValueError) as problem:
            raise UserError(f"{file} cannot be read: {problem}. Put back the one the run was started with.") from None

    # -- logs ----------------------------------------------------------------------------------------------------------

    def append(self, log: str, record: JsonDict) -> None:
        """One line at the end of a log."""
        with (self.path / log).open("a", encoding="utf-8") as file:
            file.write(json.dumps(_finite({**record, **self.marks})) + "\n")
        self.lines[log] += 1

    def sync_logs(self) -> None:
        """Makes sure the lines are on the disk, before a checkpoint counts on them."""
        for log in LOGS:
            if self.lines[log]:
                with (self.path / log).open("ab") as file:
                    os.fsync(file.fileno())

    def read(self, log: str) -> list[JsonDict]:
        """All whole lines of a log."""
        return list(self._whole_lines(log))

    def _whole_lines(self, log: str) -> Iterator[JsonDict]:
        for line in _lines(self.path / log):
            record = _record(line)
            if record:
                yield record

    def rewind(self, lines: dict[str, int], step: int = 0) -> list[str]:
        """Drops what was logged after a checkpoint, and nothing before it.

        A line that cannot be read is put aside as it is (``metrics.jsonl.damaged``) and an empty record takes its place, so that
        counts of lines, in this checkpoint and in older ones, stay right.

        Args:
            lines: how many lines each log had.
            step: of the checkpoint.

        Returns:
            What the user should know.
        """
        remarks = []
        for log in LOGS:
            if log != PROBLEMS or lines.get(log) or (self.path / log).exists():
                remarks += self._cut(log, lines.get(log, 0))
        for later in self.rollout_steps():
            if later > step:
                self._rollout_file(later).unlink()
        return remarks

    def _cut(self, log: str, count: int) -> list[str]:
        file, remarks = self.path / log, list[str]()
        kept = _lines(file)[:count]
        damaged = [place for place, line in enumerate(kept) if line.strip() and _record(line) is None]
        if damaged:
            aside = file.with_name(f"{log}.damaged")
            with aside.open("ab") as beside:
                beside.write(b"".join(kept[place] + b"\n" for place in damaged))
            for place in damaged:
                kept[place] = EMPTY
            shown = ", ".join(str(place + 1) for place in damaged[:5]) + (", ..." if len(damaged) > 5 else "")
            remarks.append(f"{file} has {len(damaged)} damaged line{'s'[: len(damaged) > 1]} ({shown}), now in {aside.name}.")
        if len(kept) < count:
            there = f"has {len(kept)} of the {count} lines" if file.exists() else f"is missing, with all {count} lines"
            remarks.append(f"{file} {there} it had at the checkpoint; what is gone of the history stays gone.")
            kept += [EMPTY] * (count - len(kept))
        write_bytes(file, b"".join(line + b"\n" for line in kept))
        self.lines[log] = count
        return remarks

    # -- rollouts ------------------------------------------------------------------------------------------------------

    def write_rollouts(self, record: JsonDict, look: JsonDict) -> None:
        """A step's rollouts, whole or not at all, and the line on where to look in them."""
        file = self._rollout_file(record["step"])
        file.parent.mkdir(exist_ok=True)
        draft = file.with_name(f".{file.name}.tmp")
        # Not forced to the disk: after a power cut the run goes on from a checkpoint and writes it again.
        draft.write_bytes(gzip.compress(json.dumps(record, separators=(",", ":")).encode(), compresslevel=1, mtime=0))
        draft.replace(file)
        self.append("rollouts.jsonl", look)

    def read_rollouts(self, step: int) -> JsonDict:
        """What `write_rollouts` wrote of a step."""
        file = self._rollout_file(step)
        if not file.is_file():
            steps = self.rollout_steps()
            there = f"it has {steps[0]} to {steps[-1]}" if steps else "it has none (--record none, or not yet)"
            raise UserError(f"{self.path} has no rollouts of step {step}; {there}.")
        with gzip.open(file) as packed:
            text = packed.read(MOST_UNPACKED + 1)
        if len(text) > MOST_UNPACKED:
            raise UserError(f"{file} holds more than {MOST_UNPACKED >> 20} MiB; it is too large to be shown.")
        return json.loads(text)

    def rollout_steps(self) -> list[int]:
        """Steps whose rollouts are recorded."""
        return sorted(int(file.name[5:-8]) for file in (self.path / "rollouts").glob("step-*.json.gz") if file.name[5:-8].isdigit())

    def write_episode(self, record: JsonDict) -> None:
        """An episode that was played after a step."""
        write_text(self.path / "episodes" / f"step-{record['step']:06d}.json", json.dumps(_finite(record)))

    def episode_steps(self) -> list[int]:
        """Steps after which an episode was kept."""
        return sorted(int(file.stem[5:]) for file in (self.path / "episodes").glob("step-*.json") if file.stem[5:].isdigit())

    def _rollout_file(self, step: int) -> Path:
        return self.path / "rollouts" / f"step-{step:06d}.json.gz"

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    @property
    def start(self) -> Path:
        """The policy as the run began."""
        return self.path / "checkpoints" / "start"

    @property
    def best(self) -> Path:
        """The policy as the best evaluation found it, where that is kept."""
        return self.path / "checkpoints" / "best"

    def kept_best(self) -> Path:
        """The same, which must be there."""
        if not self.best.is_dir():
            raise UserError(f"{self.path} kept no best checkpoint (that is --keep best:score). Give --checkpoint last.")
        return self.best

    def checkpoint(self, step: int) -> Path:
        return self.path / "checkpoints" / f"step-{step:06d}"

    def checkpoints(self) -> list[Path]:
        """Finished checkpoints, oldest first. Whatever else lies there is not ours."""
        found = [path for path in (self.path / "checkpoints").glob("step-*") if re.fullmatch(r"step-\d{6,}", path.name)]
        return sorted((path for path in found if path.is_dir()), key=lambda path: int(path.name[5:]))

    @property
    def keeps_none(self) -> bool:
        """Whether the run was asked to write no checkpoints."""
        settings = self.table().get("settings")
        return isinstance(settings, dict) and settings.get("checkpoint_every") == "none"

    def latest(self) -> Path:
        """The last checkpoint."""
        found = self.checkpoints()
        if not found and self.keeps_none:
            kept = " Its best weights are there: --checkpoint best." if self.best.is_dir() else ""
            raise UserError(f"{self.path} kept no checkpoint, as it was asked to (--checkpoint-every none): there is nothing to "
                            f"go on from or to use.{kept} Train it again with --checkpoint-every auto.")  # fmt: skip
        if not found:
            raise UserError(
                f"{self.path} has no checkpoint yet, so there is nothing to use. 'upslope resume {self.path}' goes on with it."
            )
        return found[-1]

    def reader(self, checkpoint: Path) -> CheckpointReader:
        """The files of one checkpoint; of runs that write digests, those must be there."""
        version = self.table().get("format", 1)
        return CheckpointReader(checkpoint, demand=isinstance(version, int) and version >= 2)

    def last_whole(self, load: Callable[[CheckpointReader], Loaded]) -> tuple[Loaded, Path, list[str]]:
        """What ``load`` makes of the newest checkpoint that is whole: what it made, which one it was, and what to tell the user.

        Raises:
            Damaged: if none is whole.
        """
        self.latest()  # there is one
        remarks: list[str] = []
        for path in reversed(self.checkpoints()):
            try:
                files = self.reader(path)
                loaded = load(files)
            except Damaged as problem:
                remarks.append(f"{problem} Checkpoint {path.name} is left out.")
                continue
            if not files.verified:
                remarks.append(f"{path.name} was written before checkpoints had digests; it was read unverified.")
            return loaded, path, remarks
        raise Damaged(" ".join([*remarks, f"{self.path} has no whole checkpoint left; what it did must be trained again."]))

    def put_aside_after(self, checkpoint: Path) -> None:
        """Renames the newer checkpoints, which are damaged: they must neither be counted nor tried again."""
        for path in self.checkpoints():
            if int(path.name[5:]) > int(checkpoint.name[5:]):
                target = path.with_name(f"damaged-{path.name}")
                shutil.rmtree(target, ignore_errors=True)  # an earlier one of the same step
                path.rename(target)

    def drop_unfinished(self) -> None:
        """Deletes what a kill left of checkpoints that were being written."""
        for draft in (self.path / "checkpoints").glob(".*.tmp"):
            shutil.rmtree(draft, ignore_errors=True)

    def prune(self, keep: int) -> None:
        """Deletes all but the last ``keep`` checkpoints."""
        for old in self.checkpoints()[:-keep]:
            shutil.rmtree(old)


Loaded = TypeVar("Loaded")


def check_new(path: str | Path) -> Path:
    """A folder that a run may begin in: one that is not there yet, or empty. It is not made."""
    if not str(path).strip():
        raise UserError("--out is empty. Give the folder of the run, or leave it out.")
    folder = Path(path).expanduser()
    try:
        if (folder / "run.toml").exists():
            done = (folder / "summary.json").exists()
            cure = "Choose another --out." if done else f"Go on with 'upslope resume {folder}', or choose another --out."
            raise UserError(f"{folder} already holds a {'finished ' if done else ''}run. {cure}")
        # A lock is all that a run leaves behind which ended before it began.
        there = [entry.name for entry in folder.iterdir() if entry.name not in (run_lock.FILE, run_lock.PROCESS)]
    except FileNotFoundError:
        return folder
    except NotADirectoryError:
        raise UserError(f"--out {folder} is a file, or below one. Give a new or empty folder.") from None
    except (OSError, ValueError) as problem:  # ValueError: a null character
        raise UserError(f"--out {str(path)[:100]!r} cannot be used: {getattr(problem, 'strerror', None) or problem}.") from None
    if there:
        shown = ", ".join(sorted(there)[:3]) + (", ..." if len(there) > 3 else "")
        cure = f"Choose another, such as {str(folder / 'run')!r}."
        raise UserError(f"--out {folder} is not empty ({shown}); a run begins in a new or empty folder. {cure}")
    return folder


def _lines(file: Path) -> list[bytes]:
    """The lines of a log, the last of them perhaps cut short."""
    if not file.exists():
        return []
    found = file.read_bytes().split(b"\n")
    return found[:-1] if not found[-1] else found


def damaged_lines(file: Path) -> tuple[int, list[int], bool]:
    """How many lines a log has, the numbers of those that cannot be read, and whether its last line was cut short, as by a kill."""
    lines = _lines(file)
    bad = [number for number, line in enumerate(lines, start=1) if line.strip() and _record(line) is None]
    torn = bool(bad) and bad[-1] == len(lines) and not file.read_bytes().endswith(b"\n")
    return len(lines), bad[:-1] if torn else bad, torn


def _record(line: bytes) -> JsonDict | None:
    """What a line of a log holds; None if it is no whole record."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _finite(value: object) -> Any:
    """JSON has no NaN; what is not a number is null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
