"""Commands that look at a run, at the catalogue and at the tasks."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from upslope.cli.codes import FAILED
from upslope.cli.training import knobs_set, taken
from upslope.errors import UserError

if TYPE_CHECKING:
    from upslope.run import Run
    from upslope.tasks.text import TextTask

# -- a run -----------------------------------------------------------------------------------------------------------------


def evaluate(flags: argparse.Namespace) -> int:
    """Measures a run."""
    if flags.best_of is not None or flags.by:
        return _evaluate_best_of(flags)
    if flags.against or flags.judge:
        return _evaluate_against(flags)
    from upslope.api import load
    from upslope.report.checkup import EvaluationRequest, evaluate, evaluation_text

    found = evaluate(
        load(flags.path, flags.trust, checkpoint=flags.checkpoint),
        EvaluationRequest(flags.k, flags.samples, flags.problems, flags.temperature, flags.engine),
    )
    _print(found if flags.json else evaluation_text(found))
    return 0


def _evaluate_against(flags: argparse.Namespace) -> int:
    from upslope.api import load
    from upslope.report.against import AgainstRequest, against_text, evaluate_against

    if not flags.against:
        raise UserError(f"--judge {flags.judge} goes with --against: it compares the run's answers with another's.")
    for name in ("k", "engine"):
        if getattr(flags, name) is not None:
            raise UserError(f"--{name} does not go with --against, which compares answers. Leave one out.")
    request = AgainstRequest(flags.against, flags.judge, flags.problems, flags.samples or 1, flags.temperature)
    found = evaluate_against(load(flags.path, flags.trust, checkpoint=flags.checkpoint), request, flags.trust)
    _print(found if flags.json else against_text(found))
    return 0


def _evaluate_best_of(flags: argparse.Namespace) -> int:
    from upslope.api import load
    from upslope.report.best_of import BestOfRequest, best_of_text, evaluate_best_of

    if flags.best_of is None or not flags.by:
        given, lacks = ("--best-of", "--by rm:RUN2, what ranks the answers") if flags.by == "" else ("--by", "--best-of 8")
        raise UserError(f"{given} goes with {lacks}. Give both.")
    for name in ("k", "samples", "engine", "against", "judge"):
        if getattr(flags, name):
            raise UserError(f"--{name} does not go with --best-of, which ranks answers. Leave one out.")
    request = BestOfRequest(flags.best_of, flags.by, flags.problems, flags.temperature)
    found = evaluate_best_of(load(flags.path, flags.trust, checkpoint=flags.checkpoint), request)
    _print(found if flags.json else best_of_text(found))
    return 0


def check(flags: argparse.Namespace) -> int:
    """Looks whether a run's folder is whole."""
    from upslope.report.check_run import check_run
    from upslope.report.live import passing_line

    with passing_line() as show:
        found = check_run(flags.path, show)
    _print([vars(each) for each in found] if flags.json else "\n".join(map(str, found)))
    return 0 if all(each.whole for each in found) else FAILED


def try_out(flags: argparse.Namespace) -> int:
    """Shows answers or an episode of a run."""
    from upslope.api import load
    from upslope.report import checkup

    run = load(flags.path, flags.trust, checkpoint=flags.checkpoint)
    if checkup.is_control(run):
        for name, given in (("--prompt", flags.prompt), ("--temperature", flags.temperature)):
            if given:
                raise UserError(f"{name} goes with text; {run.table['task']} is an environment. Try --video, --render or --seed.")
        _show_episode(run, flags)
        return 0
    for name, given in (("--render", flags.render), ("--video", flags.video)):
        if given:
            raise UserError(f"{name} goes with environments; {run.table['task']} is text.")
    speaker = checkup.Speaker(run, flags.temperature, flags.seed)
    for prompt in flags.prompt:
        for line in sys.stdin if prompt == "-" else [prompt]:
            print(speaker.answer(line.rstrip("\n")), flush=True)
    if not flags.prompt:
        print(speaker.examples(flags.problems))
        if sys.stdin.isatty():
            _talk(speaker.answer)
    return 0


def _show_episode(run: Run, flags: argparse.Namespace) -> None:
    from upslope.report.checkup import episode, watch_episode
    from upslope.report.video import film

    if flags.video and flags.render:
        raise UserError("--video writes the episode to a file and --render shows it in a window. Leave one out.")
    if flags.video:
        print(film(run, Path(flags.video), flags.seed))
        print(flags.video)
        return
    print((watch_episode if flags.render else episode)(run, flags.seed))


def _talk(answer: Callable[[str], str]) -> None:
    print("\nyour own problems; an empty line ends")
    with suppress(EOFError):
        while line := input("> "):
            print(answer(line), flush=True)


# -- the catalogue -----------------------------------------------------------------------------------------------------------


def list_methods(flags: argparse.Namespace) -> int:
    """Lists the catalogue."""
    from upslope.api import list_methods
    from upslope.methods import measures
    from upslope.report.describe import method_record, methods_table

    found = list_methods(flags.family)
    if flags.situation is not None:
        if not flags.situation.strip():
            raise UserError("--for is empty; say what your situation is, as in --for 'my rewards are noisy'.")
        return _methods_for(flags.situation, {each.name for each in found}, flags.json)
    _print([method_record(each) for each in found] if flags.json else methods_table(found, _terminal_width()))
    if not flags.json and flags.family in ("", "offline"):
        print(f"measures of data, which train nothing ('upslope data describe'): {', '.join(measures())}")
    return 0


def _methods_for(situation: str, names: set[str], as_json: bool) -> int:
    """Lists methods for a situation, of those that are named."""
    from upslope.report.catalogue import catalogue_records
    from upslope.report.catalogue_search import answer_text, answers

    records = catalogue_records()
    records["methods"] = [each for each in records["methods"] if each["name"] in names]
    found: list[object] = [
        each.method | {"score": each.score, "matched": list(each.matched)} for each in answers(records, situation)
    ]
    _print(found if as_json else answer_text(records, situation, _terminal_width()))
    return 0


def show(flags: argparse.Namespace) -> int:
    """Shows a method."""
    from upslope.api import method
    from upslope.report.catalogue import claim_text
    from upslope.report.describe import show_record, show_text

    found = method(flags.method, taken(flags)).with_knobs(knobs_set(flags))
    width = min(_terminal_width() or 110, 110)
    _print(show_record(found, flags.flat) if flags.json else show_text(found, flags.flat, width))
    if not flags.json and (told := claim_text(found.name, width)):
        print(f"\n{told}")
    return 0


def check_method(flags: argparse.Namespace) -> int:
    """Makes the checks of the catalogue on a method."""
    from upslope.api import method
    from upslope.report.check_method import checked, verdict
    from upslope.runtime.settings_flags import pairs

    found = method(flags.method, taken(flags)).with_knobs(knobs_set(flags))
    say = (lambda line: None) if flags.json else (lambda line: print(line, flush=True))
    off = pairs("--off", flags.off, "PATH=VALUE, as in shape.factor=1")
    results = checked(found, off=off, task=flags.task, reward=flags.reward, runs=not flags.no_runs, say=say)
    _print([vars(each) for each in results] if flags.json else verdict(found, results))
    return 0 if all(each.passed for each in results) else FAILED


def list_tasks(flags: argparse.Namespace) -> int:
    """Lists what can be trained on, shows problems of one, or tries its reward."""
    if flags.audit or flags.reward:
        return _audit(flags)
    if flags.task:
        return _show_task(flags)
    for name in ("show", "model", "test_data", "columns", "system", "template"):
        if getattr(flags, name):
            raise UserError(f"--{name.replace('_', '-')} goes with a task: upslope tasks problems.jsonl --show 3.")
    from upslope.tasks import list_tasks

    found = list_tasks(flags.all)
    if flags.json:
        _print([vars(each) for each in found])
        return 0
    room = max(len(each.name) for each in found)
    _print("\n".join(f"{each.name:<{room}}  {each.domain:<7}  {each.description}{_gives(each.gives)}" for each in found))
    return 0


def _gives(words: tuple[str, ...] | None) -> str:
    """What a task gives beyond reference answers, behind its description."""
    further = [word for word in words or () if word not in ("answers", "solutions")]
    return f" ({', '.join(further)})" if further else ""


def _audit(flags: argparse.Namespace) -> int:
    """What a task's reward, or another one for it, pays for answers of known worth."""
    from upslope.rewards import load_rewards
    from upslope.rewards.audit import audit_text
    from upslope.tasks import load_task
    from upslope.tasks.text import UndecidedReward

    if not flags.task or not flags.audit:
        raise UserError("--audit goes with a task, and --reward with both: upslope tasks problems.jsonl --audit --reward number.")
    task = load_task(flags.task, reward=load_rewards(flags.reward), test_data=flags.test_data or None, columns=flags.columns)
    if isinstance(getattr(task, "reward", None), UndecidedReward):
        raise UserError(f"{flags.task!r} has no reward of its own: say which one to audit, as in --reward number.")
    if task.domain == "control":
        raise UserError(f"{flags.task} is an environment, which pays for actions; only rewards for text can be audited.")
    records, text = audit_text(cast("TextTask", task), ", ".join(flags.reward))
    _print([*records] if flags.json else text)
    return 0


def _show_task(flags: argparse.Namespace) -> int:
    from upslope.report.show_task import SHOWN, ShowRequest, task_record, task_text
    from upslope.runtime.system_text import with_system_text

    given = {name: getattr(flags, name) for name in ("task", "model", "test_data", "columns", "system", "template")}
    found = task_record(ShowRequest(**with_system_text(given), count=flags.show or SHOWN))
    _print(found if flags.json else task_text(found))
    return 0


def _print(value: str | Mapping[str, object] | list[object]) -> None:
    print(value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False))


def _terminal_width() -> int:
    """Columns of the terminal, or 0 where nobody is looking and nothing should be cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
