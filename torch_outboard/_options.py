# SPDX-License-Identifier: BSD-3-Clause
"""A driver's options: declared with type, default and documentation; passed to attach or in environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from torch_outboard._errors import RegistrationError

__all__ = [
    "Option",
    "OptionValue",
    "environment_name",
    "nearest",
    "resolve_options",
    "to_text",
]

OptionValue = bool | int | float | str

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


@dataclass(frozen=True)
class Option:
    """One option of a driver.

    Parameters
    ----------
    type : bool, int, float or str
        The type to which its value is converted.
    default : value or None
        The value if neither attach nor the environment sets the option; None leaves the choice to the driver.
    doc : str
        One sentence for `outboard info`.
    choices : tuple of str
        The valid values of a str option, if only a few are valid.
    is_in_environment : bool
        False if the driver itself reads the environment for this option.
    """

    type: type[bool] | type[int] | type[float] | type[str]
    default: OptionValue | None
    doc: str
    choices: tuple[str, ...] = ()
    is_in_environment: bool = True

    def convert(self, value: object) -> OptionValue:
        """Return the value converted to the declared type; raise ValueError or TypeError if the conversion fails."""
        if self.type is bool:
            return _to_bool(value)
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise TypeError(f"must be {self.type.__name__}, not {type(value).__name__}")
        if self.type is str:
            if self.choices and str(value) not in self.choices:
                raise ValueError(f"must be one of {', '.join(self.choices)}, not {value!r}")
            return str(value)
        if self.type is int:
            return _to_int(value)
        return float(value)


def _to_bool(value: object) -> bool:
    text = str(value).strip().lower()
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise ValueError(f"must be true or false, not {value!r}")


def _to_int(value: int | float | str) -> int:
    if isinstance(value, str):
        return int(value, 0)
    if value != int(value):
        raise ValueError(f"must be a whole number, not {value!r}")
    return int(value)


def nearest(name: str, known: list[str]) -> str:
    """Return ' Did you mean …?', or the list of known names if none is similar."""
    import difflib

    matches = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if matches:
        return f" Did you mean {' or '.join(repr(match) for match in matches)}?"
    return f" Choose from: {', '.join(sorted(known))}." if known else " None exist."


def environment_name(driver: str, option: str) -> str:
    """Return the variable that sets an option: OUTBOARD_MYCHIP_DEVICES for `devices` of `mychip`."""
    return f"OUTBOARD_{driver}_{option}".upper()


def resolve_options(
    driver: str, declared: Mapping[str, Option], values: Mapping[str, object]
) -> dict[str, OptionValue | None]:
    """Return the value of each declared option: from attach, else from the environment, else the default.

    Raises
    ------
    RegistrationError
        The driver does not declare an option, or a value has the wrong type.
    """
    for name in values:
        if name not in declared:
            raise RegistrationError(
                f"driver {driver!r} cannot be attached: it has no option {name!r}.{nearest(name, list(declared))}"
            )
    return {name: _resolve(driver, name, option, values) for name, option in declared.items()}


def _resolve(driver: str, name: str, option: Option, values: Mapping[str, object]) -> OptionValue | None:
    variable = environment_name(driver, name)
    if values.get(name) is not None:
        where, value = f"option {name!r}", values[name]
    elif option.is_in_environment and os.environ.get(variable):
        where, value = variable, os.environ[variable]
    else:
        return option.default
    try:
        return option.convert(value)
    except (TypeError, ValueError) as error:
        raise RegistrationError(
            f"driver {driver!r} cannot be attached: {where} {_reason(error, option, value)}. {option.doc}"
        ) from error


def _reason(error: Exception, option: Option, value: object) -> str:
    text = str(error)
    return text if text.startswith("must be") else f"must be {option.type.__name__}, not {value!r}"


def to_text(value: OptionValue) -> str:
    """Return the value in the form that a driver library reads; true and false become 1 and 0."""
    return str(int(value)) if isinstance(value, bool) else str(value)
