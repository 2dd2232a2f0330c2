"""Ask engines, each in a process of its own, and judge what they answer."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.judging.compare import Mismatch
from conformance.subjects.answers import CannotExpress
from conformance.workers.described import Elsewhere
from conformance.workers.interpreters import Home, Settings
from conformance.workers.protocol import WorkerDied, project_version
from mha.atlas import engine as engines
from mha.atlas.engine import Engine
from mha.atlas.questions import QUESTIONS, RAISES, Asked, Question
from mha.vectors.judge import compared
from mha.vectors.table import all_vectors
from mha.vectors.write import arrays_of, row_of
from mha_core import BackendError, SpecError
from mha_core.dtypes import storage_dtype
from mha_core.errors import ErrorElsewhere, one_line

NEVER = frozenset(["additive", "rotary", "query_key_norm", "dropout_keep"])
"""Features of vectors that no engine is asked for."""

SOURCES = frozenset(["causal", "window", "valid_lens", "allowed", "bias"])

FOLLOWS, PARTS, CANNOT = "follows", "parts", "can't be asked"

LITTLE = {"float64": 1e-6, "float32": 1e-3, "float16": 0.05, "bfloat16": 0.2}
"""Dtype -> the largest error / largest expected number that is called little."""

Vector = tuple[dict[str, Any], dict[str, NDArray]]
"""The row of the manifest, and the arrays of the file."""


class Left(Exception):
    """An error: an engine lacks an argument or a feature that a call needs. The message names what is missing."""


@dataclass(frozen=True)
class Cell:
    """An engine's answer to a question. `how`: in words; `status`: whether it follows this project's definition."""

    question: str
    status: str
    how: str


@dataclass(frozen=True)
class Judged:
    """A summary of an engine's results on test vectors of one dtype.

    Attributes:
        equal, left: how many vectors have right results, and how many the engine has no arguments for.
        differ, raised: ids of the vectors with wrong results, and of those where the engine raised an exception.
        worst: the largest error / allowed error among the equal ones.
        little: how many of `differ` have errors of at most `LITTLE`, as from rounding in a narrower dtype.
        gradients: for how many of the equal ones the gradients were compared too, and are right.
    """

    equal: int = 0
    differ: tuple[str, ...] = ()
    raised: tuple[str, ...] = ()
    left: int = 0
    worst: float = 0.0
    little: int = 0
    gradients: int = 0


@dataclass(frozen=True)
class Entry:
    """A record of all findings on an engine. `vectors`: dtype -> results; `why`: why it could not be run, or ""."""

    id: str
    call: str
    date: str
    why: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    python: str = ""
    vectors: Mapping[str, Judged] = field(default_factory=dict)
    cells: tuple[Cell, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as a dict of JSON values."""
        vectors = {
            dtype: {**asdict(one), "differ": list(one.differ), "raised": list(one.raised)}
            for dtype, one in self.vectors.items()
        }
        return {**asdict(self), "vectors": vectors, "cells": [asdict(one) for one in self.cells]}


def vectors(dtypes: Sequence[str]) -> list[Vector]:
    """Return (manifest row, arrays by name) for each vector in `dtypes` without projections or a feature in NEVER."""
    found = []
    for vector in all_vectors():
        if vector.form == "heads" and vector.dtype in dtypes and not vector.case.config.parts:
            wanted = vector.answer()
            row = row_of(vector, wanted)
            if not NEVER & set(row["features"]):
                arrays = {name: array for name, (_, array) in arrays_of(vector, wanted).items()}
                found.append((row, arrays))
    return found


def masks(options: Sequence[str], where: NDArray | None, bias: NDArray | None, strict: bool = False) -> dict[str, Any]:
    """Return keyword arguments named in `options` that pass a mask `where` and a bias. Raise Left if none can.

    With `strict`, the mask is not passed as -inf in a bias.
    """
    if where is None and bias is None:
        return {}
    both = where is not None and bias is not None
    if "allowed" in options and "bias" in options:
        return {name: one for name, one in (("allowed", where), ("bias", bias)) if one is not None}
    if bias is None and (name := next((name for name in ("allowed", "mask") if name in options), None)):
        return {name: where}
    if not (name := next((name for name in ("bias", "mask") if name in options), None)):
        raise Left("a bias" if bias is not None else "a mask")
    if where is not None and strict:
        raise Left(f"a mask of {where.dtype}")
    if both or bias is None:
        assert where is not None
        dtype = np.float32 if bias is None else bias.dtype
        bias = np.where(where, 0 if bias is None else bias, -np.inf).astype(dtype)
    return {name: bias}


class Asker:
    """An engine that runs in a process of its own, with methods that call it.

    Args:
        settings: the interpreter and limits of the process.
        seconds: the time limit of one call.
    """

    def __init__(self, engine: Engine, settings: Settings, seconds: float) -> None:
        self._engine, self._seconds = engine, seconds
        self._process = Elsewhere(Home(engine.id, seconds), settings)
        self.about: dict[str, Any] = self._process.asked(settings.import_limit, dict, engines.described, engine.id)

    def call(
        self, given: Sequence[NDArray], options: Mapping[str, Any], dtype: str, cotangent: NDArray | None = None
    ) -> dict[str, NDArray]:
        """Return name -> array: output, and gradients if `cotangent` is given. `given`: queries, keys, values.

        Raises Left if the engine lacks an option, a dtype or grouped heads.
        """
        if lacking := [name for name in options if name not in self.about["options"]]:
            raise Left(lacking[0])
        if missing := [name for name in self.about["always"] if name not in options]:
            raise Left(f"a call without {missing[0]}")
        if dtype not in self.about["dtypes"]:
            raise Left(dtype)
        if given[0].shape[1] != given[1].shape[1] and not self._engine.grouped:
            raise Left("grouped heads")
        arguments = [self._engine.id, list(given), dict(options), dtype]
        try:
            return self._process.asked(self._seconds, dict, engines.called, *arguments, cotangent)
        except CannotExpress as error:
            raise Left(str(error)) from error

    def answer(self, question: Question) -> Cell:
        """Return what the engine answers to a question."""
        always = question.causal and "causal" in self.about["always"]
        asked: Asked = question.build(causal=True) if always else question.build()
        try:
            options = masks(self.about["options"], asked.allowed, asked.bias, asked.strict)
            output = self.call(asked.arrays, {**options, **asked.options}, asked.dtype)["output"]
            how = asked.name(output)
        except Left as left:
            return Cell(question.id, CANNOT, str(left))
        except Exception as error:
            how = RAISES if asked.expected == RAISES and isinstance(error, ErrorElsewhere) else said(error)
        return Cell(question.id, FOLLOWS if how == asked.expected else PARTS, how)

    def judged(self, some: Sequence[Vector]) -> Judged:
        """Return what the engine makes of vectors of one dtype."""
        counts: Counter[str] = Counter()
        differ, raised, worst = [], [], 0.0
        for row, arrays in some:
            try:
                if self._engine.one_width:
                    arrays = narrowed(arrays, row["config"]["head_dim"])
                found = self._vector(row, arrays)
            except Left:
                counts["left"] += 1
                continue
            except Exception:
                raised.append(row["id"])
                continue
            if any(array.shape != arrays[f"expected/{name}"].shape for name, array in found.items()):
                differ.append(row["id"])
                continue
            ratios, wrong = compared(found, arrays)
            if wrong:
                differ.append(row["id"])
                counts["little"] += all(_is_little(one, arrays, row["dtype"]) for one in wrong)
            else:
                counts["equal"] += 1
                counts["gradients"] += len(found) > 1
                worst = max(worst, *ratios)
        rest = (counts[name] for name in ("little", "gradients"))
        return Judged(counts["equal"], tuple(differ), tuple(raised), counts["left"], worst, *rest)

    def _vector(self, row: Mapping[str, Any], arrays: Mapping[str, NDArray]) -> dict[str, NDArray]:
        given, options = self._call_of(row, arrays)
        cotangent = arrays.get("inputs/cotangent")
        try:
            found = self.call(given, options, row["dtype"], cotangent)
        except ErrorElsewhere:
            if cotangent is None:
                raise
            found = self.call(given, options, row["dtype"])  # it may lack gradients alone
        past = row["sizes"]["Lp"]
        for name in ("keys", "values"):
            if past and (whole := found.pop(f"gradients.{name}", None)) is not None:
                found[f"gradients.past_{name}"], found[f"gradients.{name}"] = whole[:, :, :past], whole[:, :, past:]
        kind = storage_dtype(row["dtype"])
        with np.errstate(all="ignore"):
            return {name: array.astype(kind) for name, array in found.items() if f"expected/{name}" in arrays}

    def _call_of(self, row: Mapping[str, Any], arrays: Mapping[str, NDArray]) -> tuple[list[NDArray], dict[str, Any]]:
        """Queries, keys and values, and the options of a vector's call."""
        given = [arrays["inputs/queries"]]
        for name in ("keys", "values"):
            old = [arrays[f"inputs/past_{name}"]] if row["sizes"]["Lp"] else []
            given.append(np.concatenate([*old, arrays[f"inputs/{name}"]], axis=2))
        has, options = set(row["features"]), dict[str, Any]()
        where, bias = arrays["inputs/mask"], arrays.get("inputs/bias")
        queries, keys = where.shape[2:]
        triangle = np.tri(queries, keys, keys - queries, dtype=bool)
        always = "causal" in self.about["always"]
        if (
            "causal" in self.about["options"]
            and (where == triangle).all()
            and (always or (has & SOURCES == {"causal"} and queries == keys))
        ):
            options, where = {"causal": True}, np.ones_like(where)
        if bias is not None:
            bias = np.broadcast_to(bias, where.shape).copy()
        options |= masks(self.about["options"], None if where.all() and bias is None else where, bias)
        if row["config"]["softcap"] is not None:
            options["softcap"] = row["config"]["softcap"]
        if not np.isclose(scale := row["call"]["scale"], row["config"]["head_dim"] ** -0.5, rtol=1e-12):
            options["scale"] = scale
        return given, options


def narrowed(arrays: Mapping[str, NDArray], width: int) -> dict[str, NDArray]:
    """Return a test vector's arrays, with values and output cut or zero-padded to `width`, and without gradients."""
    own = arrays["inputs/values"].shape[-1]
    if own == width:
        return dict(arrays)
    found = {name: one for name, one in arrays.items() if name.startswith("inputs/") and name != "inputs/cotangent"}
    for name in ("inputs/values", "inputs/past_values", "expected/output", "allowed/output"):
        if name in arrays:
            rest = [(0, 0)] * (arrays[name].ndim - 1)
            fill = np.inf if name.startswith("allowed/") else 0.0  # of what was filled nothing is asked
            found[name] = np.pad(arrays[name][..., :width], [*rest, (0, max(0, width - own))], constant_values=fill)
    return found


def _is_little(wrong: Mismatch, arrays: Mapping[str, NDArray], dtype: str) -> bool:
    expected = np.abs(arrays[f"expected/{wrong.stage}"])
    largest = expected[np.isfinite(expected)].max(initial=0.0)
    error = np.nan if wrong.error is None else wrong.error
    return bool(error <= LITTLE[dtype] * max(1.0, largest))


def said(error: Exception) -> str:
    """Return an error of an engine in a line: what it raised, or how its process ended."""
    if isinstance(error, ErrorElsewhere):
        return f"raises {error}"
    return str(error) if isinstance(error, SpecError | WorkerDied | BackendError) else one_line(error)


def entry_of(
    engine: Engine,
    some: Sequence[Vector],
    settings: Settings,
    seconds: float,
    progress: Callable[[str], None] = lambda what: None,
) -> Entry:
    """Return an Entry: an engine's answers to all questions and results on the vectors `some`, or why it can't run."""
    today = date.today().isoformat()
    try:
        asker = Asker(engine, settings, seconds)
    except Exception as error:
        return Entry(engine.id, engine.call, today, why=said(error))
    cells = []
    for question in QUESTIONS:
        progress(f"{engine.id}: {question.id}")
        cells.append(asker.answer(question))
    found = {}
    for dtype in asker.about["dtypes"]:
        progress(f"{engine.id}: vectors in {dtype}")
        own = [one for one in some if one[0]["dtype"] == dtype]
        if own:
            found[dtype] = asker.judged(own)
    return Entry(engine.id, engine.call, today, "", asker.about["versions"], asker.about["python"], found, tuple(cells))


def whole(entries: Sequence[Entry], kept: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return all entries as a dict of JSON values. `kept`: earlier entries, for engines that are not in `entries`."""
    found = {**{one["id"]: one for one in kept}, **{one.id: one.to_dict() for one in entries}}
    order = [*engines.ENGINES, *found]
    return {
        "schema": 1,
        "made_by": f"mha-parity {project_version()}",
        "questions": [{"id": one.id, "about": one.about, "text": one.text} for one in QUESTIONS],
        "engines": sorted(found.values(), key=lambda one: order.index(str(one["id"]))),
    }


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each engine or answer that is new or changed from `old` to `new`, both results of `whole`."""
    before, after = ({one["id"]: one for one in each["engines"]} for each in (old, new))
    for id, entry in after.items():
        if id not in before:
            yield f"{id}: new"
            continue
        was = before[id]
        if was["why"] != entry["why"]:
            yield f"{id}: {was['why'] or 'ran'} -> {entry['why'] or 'ran'}"
            continue
        cells = {one["question"]: one for one in was["cells"]}
        for cell in entry["cells"]:
            one = cells.get(cell["question"])
            if one is None or _said_by(one) != _said_by(cell):
                yield f"{id} {cell['question']}: {_cell(one) if one else 'not asked'} -> {_cell(cell)}"
        for dtype in entry["vectors"].keys() & was["vectors"].keys():
            now, then = entry["vectors"][dtype], was["vectors"][dtype]
            for status in ("differ", "raised"):
                yield from (f"{id} {one}: now {status}" for one in sorted({*now[status]} - {*then[status]}))
                yield from (f"{id} {one}: no longer {status}" for one in sorted({*then[status]} - {*now[status]}))


def _said_by(cell: Mapping[str, str]) -> tuple[str, str]:
    """The status and the answer; of an exception its type alone, since messages have counters and addresses in them."""
    how = cell["how"]
    return cell["status"], how.partition(": ")[0] if how.startswith("raises ") else how


def _cell(cell: Mapping[str, str]) -> str:
    return f"{cell['status']} ({cell['how']})"
