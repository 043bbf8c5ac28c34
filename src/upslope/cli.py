"""The command line: reads flags, calls the library, prints. What is heavy is imported by the command that needs it."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from upslope import __version__
from upslope.errors import Remark, UserError, did_you_mean
from upslope.runtime.environment import ALLOCATOR

if TYPE_CHECKING:
    from upslope.report.live import LiveTable
    from upslope.run import Run

COMMANDS = ("train", "eval", "try", "serve", "resume", "check", "compare", "board", "methods", "show", "tasks")
BROKEN, FAILED, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141

ABOUT = "Policy optimization as a composition of small parts on one engine."
EXAMPLES = """examples:
  upslope train dhpo                                  the demo: a tiny model learns to write words backwards
  upslope train grpo --task reverse --steps 100 --set surrogate.high=0.3
  upslope train ppo --task gym:CartPole-v1
  upslope train my_method.py --task problems.jsonl --reward my_reward.py:score --model smollm2
  upslope compare grpo dapo --task reverse            which is better, with five seeds each and error bars
  upslope board                                       runs, curves and rollouts in a browser, live
  upslope show dhpo                                   what a method changes, its formula, its paper
  upslope eval runs/dhpo-reverse-0 --k 16             pass@k with intervals
  upslope serve runs/dhpo-reverse-0                   its result behind OpenAI's protocol

'upslope COMMAND --help' says more about each command."""
TAKE: dict[str, Any] = {
    "action": "append",
    "default": [],
    "metavar": "SLOT=METHOD",
    "help": "which method of a composition fills a slot that two of them change; repeatable",
}


class _Parser(argparse.ArgumentParser):
    """Errors like all others here: a `UserError`, without the usage text."""

    def error(self, message: str) -> NoReturn:
        command = self.prog.partition(" ")[2]
        raise UserError(f"{command + ': ' if command else ''}{_sentence(message)} '{self.prog} --help' says more.")


def _sentence(message: str) -> str:
    words = message.removeprefix("argument ").replace("the following arguments are required: ", "it needs ")
    return words if words.endswith(("?", ".")) else f"{words}."


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; the exit code: 0 done, 1 a fault of ours, 2 something to mend, 130 interrupted."""
    if argv is None:  # the process is ours, with those it starts
        for name, value in ALLOCATOR.items():
            os.environ.setdefault(name, value)
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", Remark)
            warnings.formatwarning = _in_a_line
            code = _dispatch([word for word in words if word != "--debug"])
        sys.stdout.flush()
        return code
    except UserError as error:
        return _failed(str(error), FAILED, debug)
    except KeyboardInterrupt:
        print("upslope: interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has what it wanted. Standard output is replaced so that closing it does not complain.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as problem:  # the disk, a folder, a port: what the system refuses has its own words
        what = f"{problem.filename}: " if problem.filename else ""
        return _failed(f"{what}{problem.strerror or problem}.", FAILED, debug)
    except Exception as fault:
        said = f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__
        return _failed(f"this should not have happened: {said}. With --debug it says where.", BROKEN, debug)


def _in_a_line(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> str:
    """A remark for the user without the place in our code it came from; any other warning as ever."""
    return f"note: {message}\n" if issubclass(category, Remark) else _format_warning(message, category, *where, **more)


_format_warning = warnings.formatwarning


def _failed(message: str, code: int, debug: bool) -> int:
    """One line for the user; all that is known for whoever asks."""
    if debug:
        traceback.print_exc(file=sys.stderr)
    print(f"upslope: {message}".encode(errors="backslashreplace").decode(), file=sys.stderr)
    return code


def _dispatch(argv: list[str]) -> int:
    parser, commands = _parsers()
    named = next((word for word in argv if not word.startswith("-")), None)
    if named is not None and named not in commands:
        raise UserError(f"no command named {named!r}.{did_you_mean(named, commands)} There are {', '.join(commands)}.")
    if not argv:
        parser.print_help()
        return 0
    try:
        flags, unknown = parser.parse_known_args(argv)
    except SystemExit as asked:  # --help and --version have printed what they had to say
        return int(asked.code or 0)
    if unknown:
        _refuse(unknown, commands[flags.command] if flags.command else parser)
    run: Callable[[argparse.Namespace], int] = flags.run
    return run(flags)


def _refuse(unknown: list[str], parser: argparse.ArgumentParser) -> NoReturn:
    first = next((word for word in unknown if word.startswith("-")), unknown[0])
    if not first.startswith("-"):
        parser.error(f"{first!r} is one word too many")
    flag = first.partition("=")[0]
    known = [name for action in parser._actions for name in action.option_strings]
    near = did_you_mean(flag, known)
    raise UserError(f"{parser.prog.partition(' ')[2]}: no flag {flag!r}.{near} '{parser.prog} --help' lists all.")


# -- flags -----------------------------------------------------------------------------------------------------------------


def _parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    from upslope.report.compare import command as compare_command
    from upslope.runtime.settings_flags import add_settings

    shape: dict[str, Any] = {"allow_abbrev": False, "formatter_class": _wide}
    parser = _Parser(prog="upslope", description=ABOUT, epilog=EXAMPLES, **shape)
    parser.add_argument("--version", action="version", version=f"upslope {__version__}")
    parser.add_argument("--debug", action="store_true", help="with any command: where an error came from, as a traceback")
    below = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=_Parser)

    def command(name: str, run: Callable[[argparse.Namespace], int], about: str) -> argparse.ArgumentParser:
        made = below.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".", **shape)
        made.set_defaults(run=run)
        return made

    train = command("train", _train, "train a policy; prints the folder of the run last")
    train.usage = "upslope train METHOD [TASK] [--task TASK] [--model MODEL] [--set PATH=VALUE] [settings]"
    _add_train_flags(train)
    add_settings(train)
    _add_run_commands(command)
    compare = command("compare", _compare, "which method is better: trains each with several seeds, or takes finished runs")
    compare_command.add_flags(compare)
    add_settings(compare)
    methods = command("methods", _methods, "list the catalogue of methods")
    methods.add_argument("--family", default="", help="only this family, such as rlvr or control")
    show = command("show", _show, "what a method changes, its formula and its paper")
    show.add_argument("method", metavar="METHOD", help="a name, a composition such as dhpo+high-entropy, or a file")
    show.add_argument("--take", **TAKE)
    show.add_argument("--flat", action="store_true", help="all that it does, in the order in which it is done")
    tasks = command("tasks", _tasks, "list what can be trained on")
    tasks.add_argument("--all", action="store_true", help="with every dataset of reasoning-gym, which takes seconds")
    for each in (methods, show, tasks):
        each.add_argument("--json", action="store_true", help="the same as JSON")
    return parser, dict(below.choices)


def _wide(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=min(shutil.get_terminal_size().columns, 110))


def _add_train_flags(train: argparse.ArgumentParser) -> None:
    add = train.add_argument
    add(
        "method",
        metavar="METHOD",
        help="a name ('upslope methods'), a composition (dhpo+high-entropy), file.py or file.py:name",
    )
    add("task_word", metavar="TASK", nargs="?", help="the same as --task")
    add("--task", help="a name ('upslope tasks'), gym:ID, reasoning-gym:NAME, a .jsonl file, or file.py:Class (reverse)")
    add("--model", default="tiny", help="tiny, smollm2, or a folder that transformers can load; control needs none (tiny)")
    add("--out", help="folder of the run (runs/METHOD-TASK-SEED)")
    add("--set", action="append", default=[], metavar="PATH=VALUE", help="a knob of a part, as in surrogate.high=0.3; repeatable")
    add("--take", **TAKE)
    add("--reward", default="", help="exact, math-verify, or a function of yours as file.py:function")
    add("--test-data", default="", metavar="FILE", help="a second .jsonl to evaluate on")
    add("--tracker", action="append", default=[], metavar="NAME", help="tensorboard or wandb; repeatable")
    add("--quiet", action="store_true", help="print nothing but the folder of the run")


def _add_run_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    from upslope.board import command as board
    from upslope.runtime.settings_flags import number, whole
    from upslope.serving import command as serve

    evaluate = command("eval", _evaluate, "measure a run on held-out problems or episodes, with intervals")
    evaluate.add_argument("--k", type=whole(1), metavar="N", help="text: pass@1 to pass@N (16)")
    evaluate.add_argument("--samples", type=whole(1), metavar="N", help="text: answers per problem, at least k (k)")
    evaluate.add_argument("--problems", type=whole(1), metavar="N", help="problems or episodes (as the run was evaluated)")
    evaluate.add_argument("--temperature", type=number(0), metavar="X", help="text: of the answers for pass@k (the run's own)")
    evaluate.add_argument("--engine", metavar="URL", help="text: the OpenAI-compatible server that answers in the run's place")
    evaluate.add_argument("--json", action="store_true", help="the same as JSON")
    attempt = command("try", _try, "talk to the trained model, or watch an episode")
    attempt.add_argument("--prompt", action="append", default=[], metavar="TEXT", help="text: answer this; - reads stdin")
    attempt.add_argument("--problems", type=whole(1), default=6, metavar="N", help="text: held-out problems to show (6)")
    attempt.add_argument("--temperature", type=number(0), default=0.0, metavar="X", help="text: above 0 samples (0: the likeliest)")
    attempt.add_argument("--seed", type=whole(0), default=0, metavar="N", help="another one shows other problems or episodes (0)")
    attempt.add_argument("--render", action="store_true", help="control: watch the episode in a window")
    serve.add_flags(
        command("serve", serve.run, "answer requests in OpenAI's protocol with a run's result or a model, until interrupted")
    )
    resume = command("resume", _resume, "go on with a run that was stopped or killed")
    resume.add_argument("--quiet", action="store_true", help="print nothing but the folder of the run")
    check = command(
        "check",
        _check,
        "whether a run's folder is whole; nothing in it is run",
    )
    check.add_argument("path", metavar="RUN", help="the folder of a run")
    check.add_argument("--json", action="store_true", help="the same as JSON")
    board.add_flags(command("board", board.run, "a web page on the runs, live, until interrupted"))
    for each in (evaluate, attempt, resume):
        each.add_argument("path", metavar="RUN", help="the folder of a run")
        each.add_argument("--trust", action="store_true", help="run code in the folder that this machine did not write; remembered")


def _take(flags: argparse.Namespace) -> dict[str, str]:
    from upslope.runtime.settings_flags import pairs

    return pairs("--take", flags.take, "SLOT=METHOD, as in ratio=gspo")


# -- commands that train ---------------------------------------------------------------------------------------------------


def _train(flags: argparse.Namespace) -> int:
    from upslope.runtime.settings_flags import given_settings, pairs

    knobs = pairs("--set", flags.set, "PATH=VALUE, as in surrogate.high=0.3")
    take = _take(flags)
    if flags.task and flags.task_word and flags.task != flags.task_word:
        raise UserError(f"two tasks: {flags.task_word!r} behind the method and --task {flags.task!r}. Leave one out.")
    from upslope.api import train

    def start(watcher: LiveTable) -> Run:
        return train(
            flags.method,
            flags.task or flags.task_word or "reverse",
            model=flags.model,
            knobs=knobs,
            reward=flags.reward,
            test_data=flags.test_data,
            out=flags.out,
            trackers=tuple(flags.tracker),
            take=take,
            watcher=watcher,
            **given_settings(flags),
        )

    return _watched(start, flags.quiet)


def _compare(flags: argparse.Namespace) -> int:
    from upslope.api import compare, plan_comparison
    from upslope.report.compare.command import run

    return run(flags, compare, plan_comparison)


def _resume(flags: argparse.Namespace) -> int:
    from upslope.api import load, resume
    from upslope.runtime.run_folder import RunFolder

    if (RunFolder.open(flags.path).path / "summary.json").exists():
        summary = load(flags.path).summary
        if not flags.quiet:
            score = f"{summary['score']} {summary['score_before']:.3g} -> {summary['score_after']:.3g}"
            print(f"finished already: {summary['steps']} steps, {score}. Look at it with 'upslope try {flags.path}'.")
        print(flags.path)
        return 0
    return _watched(lambda watcher: resume(flags.path, watcher, flags.trust), flags.quiet)


def _watched(start: Callable[[LiveTable], Run], quiet: bool) -> int:
    """Trains under the live table. However it ends, the user learns how to go on; the folder is the last line on stdout."""
    from upslope.learners.nonfinite import NonFinite
    from upslope.report.live import LiveTable
    from upslope.report.page import write_report
    from upslope.run import Stopped
    from upslope.runtime.checkpoint_files import Damaged

    with LiveTable(quiet) as watcher:
        try:
            run = start(watcher)
        except Stopped as stop:
            message = str(stop)
        except KeyboardInterrupt:
            message = f"interrupted. {_how_to_go_on(watcher.run)}".rstrip()
        except UserError as error:
            lost = watcher.run is None or isinstance(error, (Damaged, NonFinite))  # to go on would end here again
            raise (error if lost else UserError(f"{error}\n{_how_to_go_on(watcher.run)}")) from error
        else:
            print(run.path)
            return 0
    print(f"upslope: {message}", file=sys.stderr)
    if watcher.run is not None:
        write_report(watcher.run)
        print(watcher.run.path)
    return INTERRUPTED


def _how_to_go_on(run: Run | None) -> str:
    if run is None:
        return ""
    saved = run.folder.checkpoints()
    where = f"goes on from its checkpoint {saved[-1].name}" if saved else "begins it again: it had no checkpoint yet"
    copied = run.path / "code"
    own = f" It runs its own copy of your code ({copied}): a mended file needs a new run." if copied.is_dir() else ""
    return f"'upslope resume {run.path}' {where}.{own}"


# -- commands that look at a run -------------------------------------------------------------------------------------------


def _evaluate(flags: argparse.Namespace) -> int:
    from upslope.api import load
    from upslope.report.checkup import Asked, evaluate, evaluation_text

    found = evaluate(load(flags.path, flags.trust), Asked(flags.k, flags.samples, flags.problems, flags.temperature, flags.engine))
    _print(found if flags.json else evaluation_text(found))
    return 0


def _check(flags: argparse.Namespace) -> int:
    from upslope.report.check_run import check_run
    from upslope.report.live import passing_line

    with passing_line() as show:
        found = check_run(flags.path, show)
    _print([vars(each) for each in found] if flags.json else "\n".join(map(str, found)))
    return 0 if all(each.whole for each in found) else FAILED


def _try(flags: argparse.Namespace) -> int:
    from upslope.api import load
    from upslope.report import checkup

    run = load(flags.path, flags.trust)
    if checkup.is_control(run):
        for name, given in (("--prompt", flags.prompt), ("--temperature", flags.temperature)):
            if given:
                raise UserError(f"{name} goes with text; {run.table['task']} is an environment. Try --render or --seed.")
        print(checkup.episode(run, flags.seed, flags.render))
        return 0
    if flags.render:
        raise UserError(f"--render goes with environments; {run.table['task']} is text.")
    speaker = checkup.Speaker(run, flags.temperature, flags.seed)
    for prompt in flags.prompt:
        for line in sys.stdin if prompt == "-" else [prompt]:
            print(speaker.answer(line.rstrip("\n")), flush=True)
    if not flags.prompt:
        print(speaker.examples(flags.problems))
        if sys.stdin.isatty():
            _talk(speaker.answer)
    return 0


def _talk(answer: Callable[[str], str]) -> None:
    print("\nyour own problems; an empty line ends")
    with suppress(EOFError):
        while line := input("> "):
            print(answer(line), flush=True)


# -- commands that look at the catalogue -----------------------------------------------------------------------------------


def _methods(flags: argparse.Namespace) -> int:
    from upslope.api import list_methods
    from upslope.report.describe import method_record, methods_table

    found = list_methods(flags.family)
    _print([method_record(each) for each in found] if flags.json else methods_table(found, _terminal_width()))
    return 0


def _show(flags: argparse.Namespace) -> int:
    from upslope.api import method
    from upslope.report.describe import show_record, show_text

    found = method(flags.method, _take(flags))
    _print(show_record(found, flags.flat) if flags.json else show_text(found, flags.flat, min(_terminal_width() or 110, 110)))
    return 0


def _tasks(flags: argparse.Namespace) -> int:
    from upslope.tasks import list_tasks

    found = list_tasks(flags.all)
    if flags.json:
        _print([{"name": each.name, "domain": each.domain, "description": each.description} for each in found])
        return 0
    room = max(len(each.name) for each in found)
    _print("\n".join(f"{each.name:<{room}}  {each.domain:<7}  {each.description}" for each in found))
    return 0


def _print(value: str | Mapping[str, Any] | list[Any]) -> None:
    print(value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False))


def _terminal_width() -> int:
    """Columns of the terminal, or 0 where nobody is looking and nothing should be cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


if __name__ == "__main__":
    sys.exit(main())
