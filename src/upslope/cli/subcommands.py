"""Commands of a command, as in ``upslope data make``."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from upslope.plain_data import JsonDict

Run = Callable[[argparse.Namespace], int]


class Subcommands:
    """What stands behind a command, which by itself only says what there is.

    Args:
        name: Of the command.
        shape: How the parsers look.
    """

    def __init__(self, name: str, parser: argparse.ArgumentParser, shape: JsonDict):
        self.name, self.shape = name, shape
        self.below = parser.add_subparsers(
            dest=f"{name}_command", metavar="COMMAND", title="commands", parser_class=type(parser)
        )  # fmt: skip

        def show_help(flags: argparse.Namespace) -> int:
            parser.print_help()
            return 0

        parser.set_defaults(run=show_help)

    def add(self, name: str, run: Run, about: str) -> argparse.ArgumentParser:
        made = self.below.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".", **self.shape)
        made.set_defaults(run=run, command=f"{self.name} {name}")
        return made

    def parsers(self) -> dict[str, argparse.ArgumentParser]:
        """All of them by their whole names."""
        return {f"{self.name} {name}": each for name, each in self.below.choices.items()}
