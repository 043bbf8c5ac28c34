"""The commands and their flags. Light, so that ``--help`` stays fast."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from typing import NoReturn

from upslope import __version__
from upslope.cli import data, exporting, looking, runs, sandbox, training
from upslope.errors import UserError
from upslope.plain_data import JsonDict

ABOUT = "Policy optimization as a composition of small parts on one engine."
EXAMPLES = """examples:
  upslope train dhpo                                  the demo: a tiny model learns to write words backwards
  upslope train grpo --task reverse --steps 100 --set surrogate.high=0.3
  upslope train ppo --task gym:CartPole-v1
  upslope train my_method.py --task problems.jsonl --reward my_reward.py:score --model smollm2
  upslope compare grpo dapo --task reverse            which is better, with five seeds each and error bars
  upslope tasks problems.csv --show 3 --model DIR     what a model would read of one's own problems
  upslope data make mine --task gym:Pendulum-v1 --recipe mixed:expert=0.1
  upslope train iql --data mine                       learns from stored experience alone; --offline-steps N goes on online
  upslope board                                       runs, curves and rollouts in a browser, live
  upslope runs [RUN]                                  how far runs are; of one, who samples and learns
  upslope methods --for "my rewards are noisy"        which methods are for that, and whether their claims held here
  upslope show dhpo                                   what a method changes, its formula, its paper
  upslope eval runs/dhpo-reverse-0 --k 16             pass@k with intervals
  upslope serve runs/dhpo-reverse-0                   its result behind OpenAI's protocol
  upslope sandbox check                               whether programs that a model writes can be run here

'upslope COMMAND --help' says more about each command."""
SET: JsonDict = {
    "action": "append",
    "default": [],
    "metavar": "PATH=VALUE",
    "help": "a knob of a part, as in surrogate.high=0.3, or a whole part, as in aggregate=TokenMean; repeatable",
}
REWARD: JsonDict = {
    "action": "append",
    "default": [],
    "metavar": "NAME[*WEIGHT]",
    "help": "exact, contains, number, boxed, choice, math-verify, tests, json, regex:PATTERN, format:TAGS, length:max=N, "
    "repetition, rm:RUN (a reward model), one of an installed package, or file.py:function; repeatable, each with a weight behind "
    "a *",
}
TAKE: JsonDict = {
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


def parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser of all, and those of the commands by name."""
    from upslope.report.compare import command as compare_command
    from upslope.runtime.settings_flags import add_settings

    shape: JsonDict = {"allow_abbrev": False, "formatter_class": _wide}
    parser = _Parser(prog="upslope", description=ABOUT, epilog=EXAMPLES, **shape)
    parser.add_argument("--version", action="version", version=f"upslope {__version__}")
    parser.add_argument("--debug", action="store_true", help="with any command: where an error came from, as a traceback")
    below = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=_Parser)

    def command(name: str, run: Callable[[argparse.Namespace], int], about: str) -> argparse.ArgumentParser:
        made = below.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".", **shape)
        made.set_defaults(run=run)
        return made

    train = command("train", training.train, "train a policy; prints the folder of the run last")
    train.usage = "upslope train METHOD [TASK] [--task TASK] [--model MODEL] [--set PATH=VALUE] [settings]"
    _add_train_flags(train)
    add_settings(train)
    _add_run_commands(command)
    runs.add_flags(command("runs", runs.runs, runs.ABOUT))
    compare = command("compare", training.compare, "which method is better: trains each with several seeds, or takes finished runs")
    compare_command.add_flags(compare)
    add_settings(compare)
    methods = command("methods", looking.list_methods, "list the catalogue of methods")
    methods.add_argument("--family", default="", help="only this family, such as rlvr or control")
    situation = "methods for a situation in your own words, as in --for 'my rewards are noisy and I reuse rollouts'"
    methods.add_argument("--for", dest="situation", metavar="WORDS", help=situation)
    show = command("show", looking.show, "what a method changes, its formula and its paper")
    show.add_argument("method", metavar="METHOD", help="a name, a composition such as dhpo+high-entropy, or a file")
    show.add_argument("--set", **SET)
    show.add_argument("--take", **TAKE)
    show.add_argument("--flat", action="store_true", help="all its parts, from sampling to the loss, with when each runs")
    check = command("check-method", looking.check_method, "make the checks that every method must pass")
    _add_check_method_flags(check)
    tasks = command("tasks", looking.list_tasks, "list what can be trained on, show some problems of one, or try its reward")
    _add_tasks_flags(tasks)
    for each in (methods, show, check, tasks):
        each.add_argument("--json", action="store_true", help="the same as JSON")
    below_data = data.add_commands(command("data", lambda flags: 0, data.ABOUT), shape)
    below_sandbox = sandbox.add_commands(command("sandbox", lambda flags: 0, sandbox.ABOUT), shape)
    return parser, {**below.choices, **below_data, **below_sandbox}


def _add_tasks_flags(tasks: argparse.ArgumentParser) -> None:
    from upslope.runtime.settings_flags import whole

    add = tasks.add_argument
    add("task", metavar="TASK", nargs="?", help="one of them, or a file of problems: shows some of its problems")
    add("--all", action="store_true", help="with every dataset of reasoning-gym, which takes seconds")
    add("--show", type=whole(1), metavar="N", help="goes with TASK: how many problems (3)")
    add("--model", default="", help="goes with TASK: whose chat template and tokens to show, as for train")
    for flag, metavar in (("--test-data", "FILE"), ("--columns", "TEXT"), ("--system", "TEXT"), ("--template", "TEXT")):
        add(flag, default="", metavar=metavar, help="goes with TASK, as for train")
    add("--audit", action="store_true", help="goes with TASK: what its reward pays for right and wrong answers to twenty problems")
    add("--reward", **{**REWARD, "help": "goes with --audit, as for train; repeatable"})


def _add_check_method_flags(check: argparse.ArgumentParser) -> None:
    check.add_argument("method", metavar="METHOD", help="a name, a composition such as dhpo+high-entropy, or a file")
    check.add_argument("--set", **SET)
    check.add_argument("--take", **TAKE)
    check.add_argument(
        "--off",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="a knob that turns its change off: with all of these it must be its parent to the last bit; repeatable",
    )
    check.add_argument("--task", default="", help="what the checks that train do so on (a few seconds' work of their own)")
    check.add_argument("--reward", default="", help="goes with --task, as for train")
    check.add_argument("--no-runs", action="store_true", help="leave out the checks that train: seeds and resume")


def _wide(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=min(shutil.get_terminal_size().columns, 110))


def _add_train_flags(train: argparse.ArgumentParser) -> None:
    add = train.add_argument
    add(
        "method",
        metavar="METHOD",
        help="a name ('upslope methods'), file.py or file.py:name, RUN/run.toml (the method of a run), or a composition "
        "(dhpo+high-entropy, dhpo+file.py)",
    )
    add("task_word", metavar="TASK", nargs="?", help="the same as --task")
    add(
        "--task",
        help="a name ('upslope tasks'), gym:ID, reasoning-gym:NAME, a file of problems, or file.py:Class; text tasks are mixed "
        "with a plus, as in reverse+sort (reverse)",
    )
    add("--model", default="tiny", help="tiny, smollm2, a folder that transformers can load, or a run; control needs none (tiny)")
    add("--out", help="folder of the run (runs/METHOD-TASK-SEED)")
    add("--set", **SET)
    add("--take", **TAKE)
    add("--reward", **REWARD)
    add("--test-data", default="", metavar="FILE", help="a second file of problems, to evaluate on")
    add(
        "--data",
        default="",
        metavar="NAME",
        help="control: stored experience: a name ('upslope data list'), .npz, .hdf5, minari:ID",
    )
    add("--preset", default="", metavar="NAME", help="rl-zoo: an environment's settings as rl-baselines3-zoo has them; flags win")
    add(
        "--tracker",
        action="append",
        default=[],
        metavar="NAME",
        help="tensorboard, wandb, trackio or mlflow, with options as in wandb:project=mine,group=sweep; repeatable",
    )
    add("--quiet", action="store_true", help="print nothing but the folder of the run")
    add("--dry-run", action="store_true", help="say what the run would take and whether it fits; loads no weights, writes nothing")
    add(
        "--memory",
        default="",
        metavar="SIZE",
        help="goes with --dry-run: of a device that need not be here, as in 80GB (this one's)",
    )
    add("--json", action="store_true", help="goes with --dry-run: the same as JSON")


def _add_run_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    from upslope.board import command as board
    from upslope.runtime.settings_flags import number, whole
    from upslope.serving import command as serve

    evaluate = command("eval", looking.evaluate, "measure a run on held-out problems or episodes, with intervals")
    evaluate.add_argument("--k", type=whole(1), metavar="N", help="text: pass@1 to pass@N (16)")
    evaluate.add_argument("--samples", type=whole(1), metavar="N", help="text: answers per problem, at least k (k)")
    evaluate.add_argument("--problems", type=whole(1), metavar="N", help="problems or episodes (as the run was evaluated)")
    evaluate.add_argument("--temperature", type=number(0), metavar="X", help="text: of the answers for pass@k (the run's own)")
    evaluate.add_argument("--engine", metavar="URL", help="text: the OpenAI-compatible server that answers in the run's place")
    evaluate.add_argument("--against", default="", metavar="RUN2", help="text: its win rate over another run, or over its start")
    evaluate.add_argument("--judge", default="", metavar="WHO", help="goes with --against: who decides, a run or an address")
    evaluate.add_argument("--best-of", type=whole(1), metavar="N", help="text: how often the first of N ranked answers is right")
    evaluate.add_argument("--by", default="", metavar="REWARD", help="goes with --best-of: what ranks them, as in rm:runs/rm")
    evaluate.add_argument("--json", action="store_true", help="the same as JSON")
    attempt = command("try", looking.try_out, "talk to the trained model, or watch an episode")
    attempt.add_argument("--prompt", action="append", default=[], metavar="TEXT", help="text: answer this; - reads stdin")
    attempt.add_argument("--problems", type=whole(1), default=6, metavar="N", help="text: held-out problems to show (6)")
    attempt.add_argument("--temperature", type=number(0), default=0.0, metavar="X", help="text: above 0 samples (0: the likeliest)")
    attempt.add_argument("--seed", type=whole(0), default=0, metavar="N", help="another one shows other problems or episodes (0)")
    attempt.add_argument("--render", action="store_true", help="control: watch the episode in a window")
    attempt.add_argument("--video", default="", metavar="FILE", help="control: the episode as a film, .mp4 or .gif")
    serve.add_flags(
        command("serve", serve.run, "answer requests in OpenAI's protocol with a run's result or a model, until interrupted")
    )
    exporting.add_flags(
        command("export", exporting.export, "write what was trained for use in other programs, text as a folder, control as a file")
    )
    resume = command("resume", training.resume, "go on with a run that was stopped or killed")
    resume.add_argument("--steps", type=whole(1), metavar="N", help="go on to so many steps in all, with a finished run too")
    resume.add_argument("--quiet", action="store_true", help="print nothing but the folder of the run")
    check = command(
        "check",
        looking.check,
        "whether a run's folder is whole; nothing in it is run",
    )
    check.add_argument("path", metavar="RUN", help="the folder of a run")
    check.add_argument("--json", action="store_true", help="the same as JSON")
    board.add_flags(command("board", board.run, "a web page on the runs, live, until interrupted"))
    for each in (evaluate, attempt):
        each.add_argument("--checkpoint", choices=("last", "best"), default="last", help="which one; best needs --keep best (last)")
    for each in (evaluate, attempt, resume):
        each.add_argument("path", metavar="RUN", help="the folder of a run")
        each.add_argument("--trust", action="store_true", help="run code in the folder that this machine did not write; remembered")
