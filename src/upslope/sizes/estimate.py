"""The estimate of a run: what it will hold, take and write, whether that fits, and if not what would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from upslope.errors import UserError
from upslope.plain_data import JsonDict
from upslope.policies.model_shape import ModelShape
from upslope.rollout.decode.footprint import MOST_ROWS
from upslope.rollout.decode.pages import PAGE, Seats
from upslope.runtime.memory import free_bytes
from upslope.runtime.settings import Settings
from upslope.sizes.card import Card, gibibytes, gigabytes
from upslope.sizes.disk import DiskRoom, disk_of, disk_problem, disk_room
from upslope.sizes.memory import ACTIVATIONS, FLOAT32, GRADS, MOMENTS, WEIGHTS, Memory, loaded_bytes, memory_of, sampled_at_once
from upslope.sizes.settle import RANK, fits, nearest
from upslope.sizes.work import Work


class DoesNotFit(UserError):
    """A run that memory or disk cannot hold."""

    code: ClassVar[int] = 3


@dataclass(frozen=True)
class Estimate:
    """What a run takes.

    Fields:
        held, trained: parameters.
        memory: by kind; None of a model that calls its sizes by other names, of which nothing can be foreseen.
        available: bytes of the device.
        disk: what is written.
        unit: what a step is counted in.
        per_step: the most of them.
        recompute, slice_tokens: how learning is cut, as in ``run.toml``; of text.
        answers, at_once: of a step, and how many of them are sampled at once, in how many pages of memory if they share it; 0 where
            that is not known, as a server samples.
        problems: why it does not fit, each with what would; none if it does.
    """

    held: int
    trained: int
    memory: dict[str, int] | None
    device: str
    available: int
    disk: DiskRoom
    disk_free: int
    unit: str
    per_step: int
    recompute: int | str = ""
    slice_tokens: int = 0
    problems: tuple[str, ...] = field(default=())
    answers: int = 0
    at_once: Seats = field(default_factory=lambda: Seats(0, 0))

    @property
    def total(self) -> int:
        """Bytes of memory in all."""
        return sum((self.memory or {}).values())

    @property
    def fits(self) -> bool:
        return not self.problems

    def check(self) -> None:
        """Refuses what does not fit.

        Raises:
            DoesNotFit: with what would.
        """
        if self.problems:
            raise DoesNotFit(" ".join(self.problems))

    def check_disk(self) -> None:
        """Refuses a run whose checkpoints the disk has no room for; of memory more was known when it was looked at.

        Raises:
            DoesNotFit: with what would.
        """
        if self.disk_free < self.disk.total:
            raise DoesNotFit(self.problems[-1])

    def table(self) -> JsonDict:
        """The same as plain data."""
        return {
            "fits": self.fits,
            "problems": list(self.problems),
            "parameters": {"held": self.held, "trained": self.trained},
            "memory": self.memory and {"kinds": dict(self.memory), "total": self.total},
            "device": {"name": self.device, "memory": self.available},
            "disk": {
                "checkpoint": self.disk.checkpoint,
                "checkpoints": self.disk.checkpoints,
                "total": self.disk.total,
                "free": self.disk_free,
            },
            "step": {self.unit: self.per_step},
            **({"recompute": self.recompute, "slice_tokens": self.slice_tokens} if self.unit == "tokens" else {}),
            **({"sampled_at_once": {"answers": self.answers, **self.at_once._asdict()}} if self.at_once.rows else {}),
        }

    def lines(self) -> list[str]:
        """For the start of a run."""
        trained = "all of them learn" if self.trained == self.held else f"{_count(self.trained)} of them learn"
        found = [f"parameters  {_count(self.held)}, {trained}"]
        if self.memory is not None:
            kinds = ", ".join(f"{name} {gibibytes(size)}" for name, size in self.memory.items() if size >= 2**20)
            found.append(f"memory      about {gibibytes(self.total)}{f': {kinds}' if kinds else ''}")
        found.append(f"disk        {self.disk_line()}")
        cut = f", in slices of at most {self.slice_tokens:,}" if self.slice_tokens and self.slice_tokens < self.per_step else ""
        again = {"": "", "off": "", 0: "", "all": ", all layers recomputed"}.get(
            self.recompute, f", {self.recompute} layers recomputed"
        )
        found.append(f"a step      at most {self.per_step:,} {self.unit}{cut}{again}")
        if self.at_once.pages or 0 < self.at_once.rows < min(self.answers, MOST_ROWS):
            found.append(f"sampling    {self.sampling_line()}")
        return found

    def sampling_line(self) -> str:
        """How many answers are sampled at once, in words."""
        rows, pages = self.at_once
        shared = f", in {pages:,} pages of {PAGE} tokens that they share" if pages else ""
        return f"{'up to ' if pages else ''}{min(rows, self.answers):,} of {self.answers:,} answers at once{shared}"

    def disk_line(self) -> str:
        """What is written, in words."""
        if not self.disk.checkpoints:
            best = f": the best evaluation's weights, {gigabytes(self.disk.best)}" if self.disk.best else ""
            return f"no checkpoints (--checkpoint-every none){best}"
        count = f"{self.disk.checkpoints} checkpoints" if self.disk.checkpoints > 1 else "one checkpoint"
        once = f", and the model itself, {gigabytes(self.disk.once)}" if self.disk.once else ""
        return f"{gigabytes(self.disk.total)}: {count} of {gigabytes(self.disk.checkpoint)}{once}"


def text_estimate(
    shape: ModelShape | None, work: Work, settings: Settings, card: Card, *, out: Path | None = None, held: int = 0,
    checked: bool = True, in_folder: bool = True,
) -> Estimate:  # fmt: skip
    """The estimate of a run on text.

    Args:
        work: settled (`upslope.sizes.settle`).
        out: the folder of the run, which need not be there.
        held: parameters of a model whose shape is not known.
        checked: look at what fits.
        in_folder: whether the model is in a folder that adapters can name.
    """
    heads = work.head_outputs * ((shape.width if shape else 0) + 1)
    adapters = shape.adapters(work.lora) if shape and work.lora else 0
    held = (shape.parameters if shape else held) + adapters + heads
    trained = adapters + heads if work.lora else held
    room = disk_room(held, trained, settings, in_folder)
    there, free = disk_of(out or Path("runs"))
    memory = memory_of(shape, work, card) if shape else None
    problems = []
    if checked and memory is not None and shape is not None and not fits(memory, card):
        problems.append(memory_problem(shape, work, card, memory))
    if checked and shape is not None and (told := host_problem(shape, work, card)):
        problems.append(told)
    if checked and free < room.total:
        problems.append(disk_problem(room, there, free))
    return Estimate(
        held, trained, memory.kinds if memory else None, card.name, card.total, room, free, "tokens", work.step_tokens,
        work.recompute, memory.slice_tokens if memory else 0, tuple(problems),
        *((work.rows, sampled_at_once(shape, work, card)) if shape else ()),
    )  # fmt: skip


def memory_problem(shape: ModelShape, work: Work, card: Card, memory: Memory) -> str:
    """What to say of memory that does not suffice, with the nearest setting that works."""
    has = f"{card.name} has {gibibytes(card.total)}" if card.on_gpu else f"{gibibytes(card.total)} are free"
    longest = f" Its longest prompt has {max(work.prompts):,} tokens." if work.prompts else ""
    found = nearest(shape, work, card)
    if found is not None:
        cure = f"It fits with {found[0]} ({gibibytes(found[1].total)})."
    else:
        fixed = gibibytes(memory.total - memory.kinds[ACTIVATIONS])
        cure = f"No setting makes it fit ({fixed} before a token is read): take a smaller --model, or a device with more memory."
    return f"the run would take about {gibibytes(memory.total)} ({memory}), and {has}.{longest} {cure}"


def host_problem(shape: ModelShape, work: Work, card: Card) -> str:
    """What to say of a host that cannot hold the moments of a GPU that is here; empty if it can, or need not."""
    if not work.offloaded or card.capability is None:
        return ""
    needed = int(work.moment_bytes * (shape.adapters(work.lora) if work.lora else shape.parameters))
    if needed <= (free := free_bytes()):
        return ""
    told = f"Adam's moments would take {gibibytes(needed)} of the host's memory (--adam-states offload)"
    return f"{told}, of which {gibibytes(free)} are free. Give --adam-states bfloat16 or 8bit, or --lora {RANK}."


def loading_problem(shape: ModelShape, work: Work, card: Card, exact: bool = False) -> str:
    """What to say of a host that cannot hold a model until it is packed; empty if it can, or need not. Of a host with a GPU that
    is not here nothing is known."""
    needed = loaded_bytes(shape, work, card, exact)
    free = card.total if not card.on_gpu else needed if card.capability is None else free_bytes()
    if needed <= free:
        return ""
    read = f"in {'bfloat16' if needed == 2 * shape.parameters else 'float32'}: {gibibytes(needed)}"
    told = f"with --base-precision nf4 the model is read into the host's memory first, {read}, of which {gibibytes(free)} are free"
    return f"{told}. Free some, or take a smaller --model{', or leave --base-precision out' if card.on_gpu else ''}."


def _count(count: int) -> str:
    return f"{count / 1e9:.2f} billion" if count >= 1e9 else f"{count / 1e6:.1f} million" if count >= 1e5 else f"{count:,}"


def control_estimate(
    held: int, trained: int, rows: Mapping[str, int], settings: Settings, per_step: int, out: Path | None
) -> Estimate:
    """The estimate of a run in an environment, whose networks are small.

    Args:
        rows: bytes of what is sampled or remembered, by kind.
        per_step: steps of environments.
    """
    card, room = Card.here("cpu"), disk_room(held, trained, settings)
    kinds = {WEIGHTS: FLOAT32 * held, GRADS: FLOAT32 * trained, MOMENTS: 2 * FLOAT32 * trained, **rows}
    there, free = disk_of(out or Path("runs"))
    problems = []
    if (total := sum(kinds.values())) > card.total:
        largest = max(kinds, key=lambda kind: kinds[kind])
        problems.append(f"the run would take about {gibibytes(total)}, of it {largest} {gibibytes(kinds[largest])}, "
                        f"and {gibibytes(card.total)} are free. Remember less (--set data.capacity=N).")  # fmt: skip
    if free < room.total:
        problems.append(disk_problem(room, there, free))
    found = {name: size for name, size in kinds.items() if size}
    return Estimate(held, trained, found, card.name, card.total, room, free, "steps of environments", per_step,
                    problems=tuple(problems))  # fmt: skip
