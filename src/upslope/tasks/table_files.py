"""Tables of problems from files: JSONL, JSON, CSV, TSV, Parquet and folders of `datasets`, each row as a dict with its place.

A file is read and checked as a whole before anything else happens, so that line 90,000 cannot end a run after an hour.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upslope.errors import MissingExtra, TaskError, did_you_mean, install_extra
from upslope.plain_data import JsonDict
from upslope.tasks.kinds import DATA_SUFFIXES
from upslope.tasks.plain_values import plain

SLOW_SECONDS, MANY_ROWS = 5.0, 10_000
"""Reading so many rows, if it takes longer than that, is said with the time: it is part of what a run waits for."""
LIKE = '{"prompt": "2+2=", "answer": "4"}'
LONGEST_FIELD = 2**30
"""Characters of a value in a CSV. The reader's own limit, 128 KB, is below the length of some prompts."""
TRAIN, TEST, TUNE = ("train", "training"), ("test", "testing"), ("validation", "valid", "val", "dev", "tune", "eval")
"""What the splits of a dataset are called."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row as it stands in the table."""

    values: JsonDict
    place: str
    """``line 3`` of a text file, ``row 3`` of any other table."""
    split: str | None = None
    """Where the table itself has several splits, the one it is in."""


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of problems, wherever they came from."""

    name: str
    rows: list[TableRow]
    remarks: tuple[str, ...] = ()
    """What the user should know about how it was read."""


def read_table(path: str) -> Table:
    """Every row of a file or folder, or a `TaskError` that names the first place that cannot be read."""
    began = time.monotonic()
    file = Path(path).expanduser()
    if file.is_dir():
        rows, remarks = _read_folder(path, file)
    elif file.is_file():
        rows, remarks = list(_read_file(path, file)), ()
    else:
        there = (
            [other.name for other in file.parent.iterdir() if other.name.endswith(DATA_SUFFIXES)] if file.parent.is_dir() else []
        )
        raise TaskError(f"no file {path!r} (looked for {file.absolute()}).{did_you_mean(file.name, there)}")
    if not rows:
        raise TaskError(f"{path!r} is empty. It must have a row for each problem, such as {LIKE}.")
    seconds = time.monotonic() - began
    slow = (f"Reading {len(rows):,} rows took {seconds:.0f} s.",) if seconds > SLOW_SECONDS and len(rows) >= MANY_ROWS else ()
    return Table(path, rows, (*remarks, *slow))


def _read_file(path: str, file: Path) -> Iterator[TableRow]:
    kind = file.name.lower().removesuffix(".gz").rpartition(".")[2]
    if kind == "parquet":
        return _read_parquet(path, file)
    data = _bytes(path, file).removeprefix(b"\xef\xbb\xbf")
    if kind in ("csv", "tsv"):
        return _read_csv(path, data, "," if kind == "csv" else "\t")
    # Many a .json holds an object on each line.
    return _read_array(path, data) if kind == "json" and data.lstrip()[:1] == b"[" else _read_lines(path, data)


def _bytes(path: str, file: Path) -> bytes:
    if not file.name.lower().endswith(".gz"):
        return file.read_bytes()
    try:
        with gzip.open(file) as packed:
            return packed.read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as problem:
        raise TaskError(f"{path!r} is not a whole gzip file ({problem}). Copy it again, or unpack it.") from None


def _decoded(where: str, raw: bytes, what: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise TaskError(f"{where}: not UTF-8 (byte {error.start + 1} of the {what}). Save the file as UTF-8.") from None


# -- JSON ------------------------------------------------------------------------------------------------------------------


def _read_lines(path: str, data: bytes) -> Iterator[TableRow]:
    for number, raw in enumerate(data.split(b"\n"), start=1):
        if raw.strip():
            place = f"line {number}"
            try:
                found = json.loads(raw.decode())
            except (ValueError, RecursionError):
                found = _parsed(f"{path}, {place}", _decoded(f"{path}, {place}", raw, "line"))  # which says what is wrong
            if not isinstance(found, dict):
                found = _object(f"{path}, {place}", found, raw.decode())
            yield TableRow(found, place)


def _read_array(path: str, data: bytes) -> Iterator[TableRow]:
    text = _decoded(path, data, "file")
    for number, item in enumerate(_parsed(path, text), start=1):
        yield TableRow(_object(f"{path}, row {number}", item, json.dumps(item)), f"row {number}")


def _parsed(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits are a ValueError of another kind
        what = str(error) if isinstance(error, ValueError) else "nested too deep"
        if isinstance(error, json.JSONDecodeError):
            what = f"{error.msg} at {f'line {error.lineno}, ' if error.lineno > 1 else ''}column {error.colno}"
        raise TaskError(f"{where}: not JSON ({what}). {_begins(text)}") from None


def _object(where: str, found: object, text: str) -> JsonDict:
    if not isinstance(found, dict):
        raise TaskError(f'{where}: a {type(found).__name__}, not an object with a "prompt". {_begins(text)}')
    return found


def _begins(text: str) -> str:
    return f"The line begins {text.strip()[:60]!r}."


# -- CSV -------------------------------------------------------------------------------------------------------------------


def _read_csv(path: str, data: bytes, delimiter: str) -> Iterator[TableRow]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise TaskError(f"{path}, line {line}: not UTF-8. Save the file as UTF-8.") from None
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    before, line = csv.field_size_limit(LONGEST_FIELD), 1
    try:
        header: list[str] = []
        for row in reader:
            if row and not header:
                header = _checked_header(f"{path}, line {line}", row, delimiter)
            elif row:
                yield TableRow(_of_header(f"{path}, line {line}", header, row), f"line {line}")
            line = reader.line_num + 1
    except csv.Error as problem:
        raise TaskError(f"{path}, line {line}: {problem}. A value that holds a quote or a line end stands in quotes.") from None
    finally:
        csv.field_size_limit(before)


def _checked_header(where: str, header: list[str], delimiter: str) -> list[str]:
    names = [name.strip() for name in header]
    for other in (";", "\t", ",", "|"):
        if len(names) == 1 and other != delimiter and other in names[0]:
            wanted = "commas" if delimiter == "," else "tabs"
            raise TaskError(f"{where}: the columns are separated by {other!r}. Save the file with {wanted} between them.")
    for name in names:
        if not name or names.count(name) > 1:
            what = f"the column {name!r} is there twice" if name else "a column has no name"
            raise TaskError(f"{where}: {what}. The first line names the columns, each once: {', '.join(names)[:100]}.")
    return names


def _of_header(where: str, header: list[str], row: list[str]) -> JsonDict:
    if len(row) != len(header):
        named = ", ".join(header)[:100]
        raise TaskError(
            f"{where}: {len(row)} values for {len(header)} columns ({named}). Put quotes around values that hold the separator."
        )
    return dict(zip(header, row, strict=True))


# -- Arrow -----------------------------------------------------------------------------------------------------------------


def _arrow(what: str) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra(f"{what} needs pyarrow, which is", install_extra("data")) from None
    return pyarrow


def _read_parquet(path: str, file: Path) -> Iterator[TableRow]:
    pyarrow = _arrow(repr(path))
    try:
        yield from _arrow_rows(path, pyarrow.parquet.ParquetFile(file).iter_batches())
    except (pyarrow.ArrowException, OSError) as problem:
        raise TaskError(f"{path!r} cannot be read as Parquet ({_first_line(problem)}). Copy it again.") from None


def _arrow_rows(path: str, batches: Iterator[Any], split: str | None = None) -> Iterator[TableRow]:
    number = 0
    for batch in batches:
        names = batch.schema.names
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise TaskError(f"{path!r} has the column {twice[0]!r} twice. Rename one.")
        for values in batch.to_pylist():
            number += 1
            place = f"row {number}" if split is None else f"{split}, row {number}"
            yield TableRow({name: plain(value, f"{path}, {place}", name) for name, value in values.items()}, place, split)


def _read_folder(path: str, folder: Path) -> tuple[list[TableRow], tuple[str, ...]]:
    """A folder of the library `datasets`: one dataset, or one for each split."""
    if (folder / "state.json").is_file():
        return list(_read_dataset(path, folder)), ()
    if not (folder / "dataset_dict.json").is_file():
        files = ", ".join(files_in(folder)) or "none"
        raise TaskError(f"{path!r} is a folder, and not one that save_to_disk of datasets wrote. Give one of its files: {files}.")
    splits = _folder_json(folder / "dataset_dict.json").get("splits")
    if not isinstance(splits, list) or not splits:
        raise TaskError(f"{str(folder / 'dataset_dict.json')!r} names no splits. Save the dataset again.")
    names, remarks = splits_of(path, [str(each) for each in splits], f"Give the folder of one: {path.rstrip('/')}/{splits[0]}.")
    rows = [TableRow(row.values, row.place, names[split]) for split in names for row in _read_dataset(path, folder / split, split)]
    return rows, remarks


def files_in(folder: Path) -> list[str]:
    """Some files of problems in a folder that is no table itself."""
    return sorted(str(each) for each in folder.rglob("*") if each.name.endswith(DATA_SUFFIXES))[:5]


def _read_dataset(path: str, folder: Path, split: str | None = None) -> Iterator[TableRow]:
    pyarrow = _arrow(repr(path))
    found = _folder_json(folder / "state.json").get("_data_files")

    def batches() -> Iterator[Any]:
        for each in found if isinstance(found, list) else []:
            with pyarrow.memory_map(str(folder / each["filename"])) as source:
                yield from pyarrow.ipc.open_stream(source)

    try:
        yield from _arrow_rows(path, batches(), split)
    except (pyarrow.ArrowException, OSError, KeyError, TypeError) as problem:
        raise TaskError(f"{str(folder)!r} cannot be read as a dataset ({_first_line(problem)}). Save it again.") from None


def _folder_json(file: Path) -> JsonDict:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as problem:
        raise TaskError(f"{str(file)!r} cannot be read ({_first_line(problem)}). Save the dataset again.") from None
    return found if isinstance(found, dict) else {}


def splits_of(path: str, splits: list[str], cure: str) -> tuple[dict[str, str | None], tuple[str, ...]]:
    """By the name of each split of a dataset, where its rows belong; `None`: they are dealt like rows that name no split.

    The rows of ``train`` are dealt to whatever the others leave empty. Where there is no test split, validation is it.
    """
    if len(splits) == 1:
        return {splits[0]: None}, ()
    names = {split: split.lower() for split in splits}
    if strange := [split for split, name in names.items() if name not in (*TRAIN, *TEST, *TUNE)]:
        raise TaskError(f"{path!r} has the splits {', '.join(splits)}, and what {strange[0]!r} is for cannot be told. {cure}")
    tested = any(name in TEST for name in names.values())
    found = {split: None if name in TRAIN else "test" if name in TEST or not tested else "tune" for split, name in names.items()}
    remarks = [f"Its split {split!r} is the test split: it has no other." for split, name in names.items() if name in TUNE]
    return found, () if tested else tuple(remarks)


def _first_line(problem: BaseException) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0][:200]
