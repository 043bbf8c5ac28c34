"""Another physics: ``gym:Pendulum-v1:params.gravity=12`` sets a number, ``gym:Hopper-v5:params.gravity=1.5x`` multiplies it.

What is changed is the simulator once it is made; rewards and time limits stay what they are. MuJoCo's parameters have MuJoCo's
names, those of classic control mostly the names in its code; ``gravity`` is everywhere its strength downwards.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from upslope.errors import TaskError, did_you_mean
from upslope.fields import shown
from upslope.plain_data import JsonDict

PARAMS = "params."
"""How options begin that are physics."""


@dataclass(frozen=True)
class Change:
    """One parameter to be set, or multiplied if it is ``relative``."""

    name: str
    value: float
    relative: bool

    @property
    def amount(self) -> str:
        """The value for people: ``12``, or ``1.5x``."""
        return f"{self.value:.12g}{'x' if self.relative else ''}"

    def __str__(self) -> str:
        return f"{PARAMS}{self.name}={self.amount}"


@dataclass(frozen=True)
class Physics:
    """What is changed of an environment; nothing by default."""

    changes: tuple[Change, ...] = ()
    task: str = ""

    @classmethod
    def parse(cls, options: JsonDict, task: str) -> Physics:
        """Of all the options of a task those that are physics."""
        found = {key.removeprefix(PARAMS): value for key, value in options.items() if key.startswith(PARAMS)}
        return cls(tuple(_change(name, value, task) for name, value in sorted(found.items())), task)

    def apply(self, env: Any) -> None:
        """Changes an environment that was just made.

        Raises:
            TaskError: if it has no such parameter, or cannot have that value.
        """
        for change in self.changes:
            found_parameter(env.unwrapped, change.name, PARAMS, self.task)
            apply_change(env.unwrapped, change, str(change), self.task)


def found_parameter(simulator: Any, name: str, prefix: str, task: str) -> Parameter:
    """What a simulator has under a name; ``prefix`` is how the option began that named it.

    Raises:
        TaskError: if it has nothing.
    """
    known = _parameters(simulator)
    if not known:
        own, seeds = f"What its own maker takes is given without {prefix!r}", f"Levels of it are {prefix}seed=[0,99]"
        cure = own if prefix == PARAMS else seeds
        raise TaskError(
            f"{task} has no physics that can be set, {prefix}{name}: MuJoCo's environments and classic control have. {cure}."
        )
    if name not in known:
        there = ", ".join(f"{each} ({parameter.shown(simulator)})" for each, parameter in known.items())
        raise TaskError(f"{task} has no parameter {name!r}.{did_you_mean(name, known)} It has: {there}.")
    return known[name]


def apply_change(simulator: Any, change: Change, given: str, task: str) -> None:
    """Sets or multiplies a parameter that is there; ``given`` is what the user wrote, for messages.

    Raises:
        TaskError: if it cannot have that value.
    """
    parameter = _parameters(simulator)[change.name]
    if change.value < 0 or (change.value == 0 and not parameter.may_be_zero):
        raise TaskError(f"{task}: {given} must be {'at least' if parameter.may_be_zero else 'above'} 0.")
    try:
        parameter.change(simulator, change.value, change.relative)
    except ValueError as error:
        raise TaskError(f"{task}: {given}: {error}") from error


def _change(name: str, value: object, task: str) -> Change:
    text = str(value)
    relative = isinstance(value, str) and text.endswith("x")
    try:
        number = math.nan if isinstance(value, bool) else float(text.removesuffix("x"))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise TaskError(
            f"{task}: {PARAMS}{name} is {shown(value)}; it must be a number, as in {PARAMS}gravity=12, or a factor, as in "
            f"{PARAMS}gravity=1.5x."
        )
    return Change(name, number, relative)


# -- what can be changed -----------------------------------------------------------------------------------------------------


class Parameter(Protocol):
    """Something of a simulator that can be changed."""

    @property
    def may_be_zero(self) -> bool:
        """Whether 0 makes sense for it; negative values never do."""

    def shown(self, simulator: Any) -> str:
        """Its present value, for people."""

    def change(self, simulator: Any, value: float, relative: bool) -> None:
        """Sets or multiplies it, and works out anew what depends on it; ValueError if that cannot be."""

    def read(self, simulator: Any) -> Any:
        """Its present value, to be put back by `write`."""

    def write(self, simulator: Any, value: Any) -> None:
        """Puts back what `read` gave; what depends on it follows with the next `change`."""


@dataclass(frozen=True)
class Attribute:
    """A number in an environment's code.

    Fields:
        depends: works out anew what the environment made of it.
    """

    name: str
    depends: Callable[[Any], None] = field(default=lambda simulator: None)
    may_be_zero: bool = False

    def shown(self, simulator: Any) -> str:
        return f"{getattr(simulator, self.name):g}"

    def change(self, simulator: Any, value: float, relative: bool) -> None:
        setattr(simulator, self.name, value * getattr(simulator, self.name) if relative else value)
        self.depends(simulator)

    def read(self, simulator: Any) -> Any:
        return getattr(simulator, self.name)

    def write(self, simulator: Any, value: Any) -> None:
        setattr(simulator, self.name, value)


@dataclass(frozen=True)
class ModelGravity:
    """Gravity of a MuJoCo model, along its third axis."""

    may_be_zero: bool = True

    def shown(self, simulator: Any) -> str:
        return f"{-simulator.model.opt.gravity[2]:g}"

    def change(self, simulator: Any, value: float, relative: bool) -> None:
        gravity = simulator.model.opt.gravity
        gravity[2] = gravity[2] * value if relative else -value

    def read(self, simulator: Any) -> Any:
        return float(simulator.model.opt.gravity[2])

    def write(self, simulator: Any, value: Any) -> None:
        simulator.model.opt.gravity[2] = value


@dataclass(frozen=True)
class ModelArrays:
    """Arrays of a MuJoCo model with a value for each body, contact surface, joint or motor, which are multiplied together."""

    names: tuple[str, ...]
    may_be_zero: bool = False

    def shown(self, simulator: Any) -> str:
        return "by a factor"

    def change(self, simulator: Any, value: float, relative: bool) -> None:
        import mujoco

        if not relative:
            count = len(getattr(simulator.model, self.names[0]))
            raise ValueError(f"it has {count} values; multiply them by a factor, as in {PARAMS}{self.names[0]}=1.5x.")
        for name in self.names:
            getattr(simulator.model, name)[:] *= value
        mujoco.mj_setConst(simulator.model, mujoco.MjData(simulator.model))  # masses of subtrees, inverse weights, ...

    def read(self, simulator: Any) -> Any:
        return [getattr(simulator.model, name).copy() for name in self.names]

    def write(self, simulator: Any, value: Any) -> None:
        for name, array in zip(self.names, value, strict=True):
            getattr(simulator.model, name)[:] = array


def _cart_pole(simulator: Any) -> None:
    simulator.total_mass = simulator.masspole + simulator.masscart
    simulator.polemass_length = simulator.masspole * simulator.length


def _pendulum(simulator: Any) -> None:
    from gymnasium import spaces

    most = simulator.max_torque
    simulator.action_space = spaces.Box(low=-most, high=most, shape=(1,), dtype=simulator.action_space.dtype)


MUJOCO: Mapping[str, Parameter] = {
    "gravity": ModelGravity(),
    "body_mass": ModelArrays(("body_mass", "body_inertia")),  # as if of another density
    "geom_friction": ModelArrays(("geom_friction",), may_be_zero=True),
    "dof_damping": ModelArrays(("dof_damping",), may_be_zero=True),
    "actuator_gear": ModelArrays(("actuator_gear",)),
}
CLASSIC: Mapping[str, Mapping[str, Parameter]] = {
    "CartPoleEnv": {
        "gravity": Attribute("gravity", may_be_zero=True),
        **{name: Attribute(name, _cart_pole) for name in ("masscart", "masspole", "length")},
        "force_mag": Attribute("force_mag"),
        "tau": Attribute("tau"),
    },
    "PendulumEnv": {
        "gravity": Attribute("g", may_be_zero=True),
        "mass": Attribute("m"),
        "length": Attribute("l"),
        "max_torque": Attribute("max_torque", _pendulum),
        "dt": Attribute("dt"),
    },
    "AcrobotEnv": {
        name: Attribute(name)
        for name in ("LINK_LENGTH_1", "LINK_MASS_1", "LINK_MASS_2", "LINK_COM_POS_1", "LINK_COM_POS_2", "LINK_MOI", "dt")
    },
    "MountainCarEnv": {"gravity": Attribute("gravity", may_be_zero=True), "force": Attribute("force")},
    "Continuous_MountainCarEnv": {"power": Attribute("power")},
}
"""Of classic control, by the name of the class."""


def _parameters(simulator: Any) -> Mapping[str, Parameter]:
    mujoco = sys.modules.get("mujoco")
    if mujoco is not None and isinstance(getattr(simulator, "model", None), mujoco.MjModel):
        return MUJOCO
    return next((CLASSIC[kind.__name__] for kind in type(simulator).__mro__ if kind.__name__ in CLASSIC), {})
