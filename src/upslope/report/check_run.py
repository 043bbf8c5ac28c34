"""``upslope check``: whether a run's folder is whole. Checkpoints, code and data are held against digests, the rest is read."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from upslope.errors import UserError
from upslope.learners.nonfinite import describe
from upslope.plain_data import JsonDict
from upslope.plan import checked_table
from upslope.report.words import in_bytes
from upslope.runtime import trust
from upslope.runtime.checkpoint_files import Damaged
from upslope.runtime.data_files import file_digest, shown_name
from upslope.runtime.python_objects import MODEL_FOLDER, located
from upslope.runtime.run_folder import LOGS, RunFolder, damaged_lines
from upslope.runtime.settings import Settings

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Finding:
    """What was found about one thing in the folder."""

    what: str
    whole: bool
    said: str

    def __str__(self) -> str:
        return f"{'ok' if self.whole else 'DAMAGED':<8} {self.what:<28} {self.said}"


def check_run(path: str | Path, progress: Progress = lambda what: None) -> list[Finding]:
    """What there is to say about a run's folder, thing by thing.

    Args:
        progress: is told what is being read.
    """
    folder = RunFolder.open(path)
    found = []
    for look in (_plan, _code, _data, _logs, _rollouts, _summary, _checkpoints, _nonfinite):
        found += list(look(folder, progress))
    return found


def _plan(folder: RunFolder, progress: Progress) -> Iterator[Finding]:
    try:
        table = checked_table(folder)
        settings = Settings(**table["settings"])
    except UserError as problem:
        yield Finding("run.toml", False, str(problem))
        return
    further = [f"model {table['model']}", f"engine {settings.engine}", *(f"reports to {name}" for name in table["trackers"])]
    yield Finding("run.toml", True, f"{table['method'].get('name')} on {shown_name(table['task'])}, {', '.join(further)}")


def _table(folder: RunFolder) -> JsonDict:
    try:
        return checked_table(folder)
    except UserError:
        return {}


def _code(folder: RunFolder, progress: Progress) -> Iterator[Finding]:
    try:
        needed = trust.named_code(_table(folder), folder.path / "code")
    except UserError as problem:
        yield Finding("code", False, str(problem))
        return
    known = trust.trusted()
    for digest, what in sorted(needed.items(), key=lambda item: item[1]):
        said = "trusted here" if digest in known else "not trusted here: what would run it asks for --trust"
        yield Finding("code", True, f"{what}, {said}")


def _data(folder: RunFolder, progress: Progress) -> Iterator[Finding]:
    for name, digest in _table(folder).get("data", {}).items():
        file = Path(located(name, folder.path))
        if not file.is_file():
            yield Finding(
                "data", False, f"no file {shown_name(name)!r} (looked for {file.absolute()}); the run cannot go on without it."
            )
            continue
        progress(name)
        same = file_digest(file) == digest
        yield Finding("data", same, f"{shown_name(name)}{'' if same else ' has changed since the run began'}")


def _logs(folder: RunFolder, progress: Progress) -> Iterator[Finding]:
    for log in LOGS:
        file = folder.path / log
        if not file.exists():
            continue
        progress(log)
        lines, damaged, torn = damaged_lines(file)
        said = f"{lines:,} lines" + (", the last of them cut short, as by a kill; resuming drops it" if torn else "")
        shown = ", ".join(map(str, damaged[:5])) + (", ..." if len(damaged) > 5 else "")
        aside = file.with_name(f"{log}.damaged")
        said += f"; damaged ones were put into {aside.name}" if aside.exists() else ""
        yield Finding(log, not damaged, f"{said}; damaged: {shown}" if damaged else said)


def _summary(folder: RunFolder, progress: Progress) -> Iterator[Finding]:
    file = folder.path / "summary.json"
    if file.exists():
        try:
            whole = isinstance(json.loads(file.read_bytes()), dict)
        except (ValueError, RecursionError):
            whole = False
        yield Finding("summary.json", whole, "the run is finished" if whole else "it is not what a run writes")


def _rollouts(folder: RunFolder, progress: Progress) -> Iterator[Finding]:
    """Recordings have no digests; whether they can be read is all that can be said."""
    listed = [record.get("step") for record in folder.read("rollouts.jsonl")]
    bad = []
    for step in listed:
        try:
            progress(f"rollouts of step {step}")
            folder.read_rollouts(int(step))  # type: ignore[arg-type]
        except (UserError, OSError, EOFError, ValueError, TypeError, RecursionError, zlib.error):
            bad.append(step)
    if listed:
        said = f"{len(listed):,} steps" + (f"; missing or damaged: {', '.join(map(str, bad[:5]))}" if bad else "")
        yield Finding("rollouts", not bad, said)


def _nonfinite(folder: RunFolder, progress: Progress) -> Iterator[Finding]:
    """Rows of updates whose gradients were not finite: the folder is whole, and this is why the run may have ended."""
    for file in sorted((folder.path / "nonfinite").glob("step-*.safetensors")):
        name = f"nonfinite/{file.name}"
        try:
            said = describe(file)
        except UserError as problem:
            yield Finding(name, False, str(problem))
            continue
        yield Finding(name, True, "; ".join(said))


def _checkpoints(folder: RunFolder, progress: Progress) -> Iterator[Finding]:
    for aside in sorted((folder.path / "checkpoints").glob("damaged-step-*")):
        yield Finding(f"checkpoints/{aside.name}", True, "damaged, and put aside; the run went on from the one before")
    if not folder.checkpoints() and folder.read("metrics.jsonl") and not folder.keeps_none:
        yield Finding("checkpoints", False, "there is none, though the run has begun; it can only be trained again")
    further = [path for path in (folder.path / MODEL_FOLDER, folder.start, folder.best) if path.is_dir()]
    for path in [*further, *folder.checkpoints()]:
        name = path.relative_to(folder.path).as_posix()
        try:
            files = folder.reader(path)
            for each in files.names():
                progress(f"{name}/{each}")
                files.check(each)
        except Damaged as problem:
            yield Finding(name, False, str(problem))
            continue
        size = sum((path / each).stat().st_size for each in files.names())
        how = "digests agree" if files.verified else "written before there were digests; not verified"
        yield Finding(name, True, f"{len(files.names())} files, {in_bytes(size)}, {how}")
