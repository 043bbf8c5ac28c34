"""The system message of a run: a text, or the name of a file that holds it."""

from __future__ import annotations

from pathlib import Path

from upslope.errors import UserError
from upslope.plain_data import JsonDict


def with_system_text(settings: JsonDict) -> JsonDict:
    """Settings as a user gave them, with the text of the file in the place of ``system="@file"``: a run keeps the text.

    Raises:
        UserError: if there is no such file, or no text in it.
    """
    given = settings.get("system")
    if not isinstance(given, str) or not given.startswith("@"):
        return settings
    file = Path(given[1:]).expanduser()
    try:
        text = file.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise UserError(f"--system {given}: the file is not UTF-8. Save it as UTF-8.") from None
    except (OSError, ValueError) as problem:
        why = getattr(problem, "strerror", None) or problem
        raise UserError(f"--system {given}: {file.absolute()} cannot be read ({why}). Behind @ stands a file's name.") from None
    if not text or text.startswith("@"):
        what = "is empty" if not text else "begins with @, and would be taken for a file's name again"
        raise UserError(f"--system {given}: the file {what}. Write the system message into it.")
    return {**settings, "system": text}
