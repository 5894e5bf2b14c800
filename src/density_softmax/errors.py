"""The errors that a user can cause and cure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# So many of the names there are stand in a message.
NUM_LISTED = 60


class UserError(ValueError):
    """Names the offending value and the remedy; the command line prints it and exits."""

    exit_code = 2


class BusyError(UserError):
    """Another process is making what this one needs: try again later."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h


class DataError(UserError):
    """Data that cannot be used; the message names the file and the remedy."""


class CalibrationWarning(UserWarning):
    """Data that weaken what is fitted to them; names the number that shows it, and the remedy."""


def choices(name: object, known: Iterable[str]) -> str:
    """What there is in place of an unknown name, as the end of a message about it.

    Args:
        name: what a user wrote. One that is close to it, or is the same but for capitals, hyphens
            and blanks, is asked for first.
        known: the names there are, in the order to list them.
    """
    names = list(known)
    spelled = {_spelling(each): each for each in names}
    close = difflib.get_close_matches(_spelling(str(name)), spelled, n=1)
    hint = f"did you mean '{spelled[close[0]]}'? " if close else ""
    few = names if len(names) <= NUM_LISTED else [*names[:NUM_LISTED], "..."]
    return f"{hint}there are: {', '.join(few) or 'none'}"


def _spelling(name: str) -> str:
    return name.lower().replace("-", "_").replace(" ", "_")
