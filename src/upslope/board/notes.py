"""What people write on a run: a note and tags, in ``notes.json`` in its folder, which nothing else reads or depends on."""

from __future__ import annotations

import json
import re
from pathlib import Path

from upslope.board import safe_files
from upslope.errors import UserError
from upslope.plain_data import JsonDict

FILE = "notes.json"
MOST_NOTE, MOST_TAGS, MOST_TAG = 4000, 20, 40
"""Characters of a note, tags of a run, characters of a tag."""
FIELDS = ("run", "note", "tags")


def read_notes(data: bytes) -> JsonDict:
    """The note and the tags of a ``notes.json`` of any origin; what is not as we write it is left out."""
    try:
        found = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    tags, note = found.get("tags"), found.get("note")
    kept = [tag[:MOST_TAG] for tag in tags if isinstance(tag, str) and tag] if isinstance(tags, list) else []
    return {"note": note[:MOST_NOTE] if isinstance(note, str) else "", "tags": list(dict.fromkeys(kept))[:MOST_TAGS]}


def write_notes(root: Path, parts: tuple[str, ...], asked: JsonDict) -> JsonDict:
    """Writes what was asked, whole or not at all; what it is now."""
    if strange := sorted(set(asked) - set(FIELDS)):
        raise UserError(f"no field {strange[0]!r}. There are {', '.join(FIELDS)}.")
    note, tags = asked.get("note", ""), asked.get("tags", [])
    if not isinstance(note, str) or len(note) > MOST_NOTE:
        raise UserError(f"a note is a text of at most {MOST_NOTE:,} characters.")
    if not isinstance(tags, list) or len(tags) > MOST_TAGS or not all(isinstance(tag, str) for tag in tags):
        raise UserError(f"tags are a list of at most {MOST_TAGS} words.")
    for tag in tags:
        if not re.fullmatch(rf"[\w.+=/-]{{1,{MOST_TAG}}}", tag):
            raise UserError(
                f"the tag {tag[: 2 * MOST_TAG]!r} must be 1 to {MOST_TAG} letters, digits and . _ + = / -, without blanks."
            )
    kept = {"note": note.strip(), "tags": list(dict.fromkeys(tags))}
    try:
        with safe_files.folder(root, *parts) as at:
            safe_files.write(at, FILE, (json.dumps(kept, indent=1) + "\n").encode())
    except OSError as problem:
        raise UserError(f"{'/'.join(parts)}/{FILE} cannot be written: {problem.strerror}.") from None
    return kept
