"""Write vectors: one safetensors file for each, `manifest.json` with its schema, and a digest of all."""

import hashlib
import json
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.judging.expected import Expected
from conformance.subjects.handout import input_arrays
from conformance.workers.protocol import project_version
from conformance.zoo.bug import GRADIENTS, Bug, DoesNotApply
from conformance.zoo.registry import all_bugs, bugs_of
from conformance.zoo.shows import Shows
from mha.vectors.table import Vector, features_of
from mha.vectors.tensors import FLOATS, Typed, to_bytes
from mha_core import SpecError
from mha_core.heads import split_heads

FORMAT = 1
"""Version of the form; a change that a reader would misread raises it."""

MANIFEST, SCHEMA = "manifest.json", "manifest.schema.json"

KEY = "mha_vector"
"""The key of a file's metadata under which its row of the manifest stands."""

COMBINED = ("mask", "padding")
"""Arrays that follow from the sources of the mask: the keys of each query; and those whose rows are set to 0."""


def write_vectors(
    folder: Path, vectors: Sequence[Vector], kind: str, progress: Callable[[Vector], None] = lambda one: None
) -> tuple[int, str]:
    """Write test vectors into a new folder, whole or not at all. Return the folder's size in bytes and its digest.

    Args:
        folder: the path of the folder; SpecError if it exists.
        kind: the name of the set in the manifest.
        progress: called with each vector once it is written.
    """
    check_new(folder)
    bugs = [bug for bug in all_bugs() if not bug.equivalent]
    revealing, rows = Revealing(bugs), list[dict[str, Any]]()
    made = folder.absolute().parent / f".{secrets.token_hex(8)}.vectors"
    try:
        made.mkdir()
        for vector in vectors:
            wanted = vector.answer()
            row = row_of(vector, wanted)
            data = to_bytes(arrays_of(vector, wanted), {KEY: _json(row)})
            (made / f"{vector.id}.safetensors").write_bytes(data)
            rows.append({**row, "reveals": revealing.of(vector, wanted), "sha256": hashlib.sha256(data).hexdigest()})
            progress(vector)
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "made_by": f"mha-parity {project_version()}",
            "set": kind,
            "bugs": [{"id": bug.id, "sentence": bug.sentence} for bug in bugs],
            "vectors": rows,
        }
        manifest["digest"] = digest_of(manifest)
        (made / MANIFEST).write_text(text_of(manifest), encoding="utf-8")
        (made / SCHEMA).write_bytes(files("mha.vectors").joinpath(SCHEMA).read_bytes())
        made.rename(folder)
    except BaseException as error:
        shutil.rmtree(made, ignore_errors=True)
        if isinstance(error, OSError):  # which names a file that nobody knows
            raise OSError(error.errno, error.strerror, str(folder)) from error
        raise
    return sum(one.stat().st_size for one in folder.iterdir()), manifest["digest"]


def check_new(folder: Path) -> None:
    """Raise SpecError unless a new folder can be made there."""
    if folder.exists() or folder.is_symlink():
        raise SpecError(f"{folder} is already there; --out names a new folder")
    if not folder.absolute().parent.is_dir():
        raise SpecError(f"--out needs an existing folder to be made in. There is no {folder.absolute().parent}.")


def text_of(manifest: Mapping[str, Any]) -> str:
    """Return a manifest as JSON text, with a line for each bug and each test vector."""
    lines = []
    for name, value in manifest.items():
        rows = isinstance(value, list)
        lines.append(f"{_json(name)}:" + ("[\n" + ",\n".join(map(_json, value)) + "\n]" if rows else _json(value)))
    return "{" + ",\n".join(lines) + "}\n"


def digest_of(manifest: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a manifest without its "digest". Its rows have the digests of the vectors' files."""
    rest = {name: value for name, value in manifest.items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def row_of(vector: Vector, wanted: Expected) -> dict[str, Any]:
    """Return the manifest's row for a test vector. Revealed bugs and the file's digest are added later."""
    problem = wanted.problem
    config, mask, sizes = problem.config, problem.inputs.mask, problem.sizes
    return {
        "id": vector.id,
        "form": vector.form,
        "case": vector.case.id,
        "dtype": vector.dtype,
        "purpose": vector.case.catches,
        "features": features_of(problem, wanted.where),
        "sizes": {"B": sizes.batch, "Lq": sizes.query_len, "Lk": sizes.key_len, "Lp": sizes.past_len},
        "config": config.to_dict(),
        "call": {
            "scale": config.softmax_scale,
            "causal": mask.causal,
            "query_offset": np.asarray(mask.query_offset).tolist(),
            "window": None if mask.window is None else list(mask.window),
        },
        "asks": vector.names(wanted),
    }


def arrays_of(vector: Vector, wanted: Expected) -> dict[str, Typed]:
    """Return the arrays of a vector's file, by name."""
    problem, found = wanted.problem, {}
    given = {name: array for name, array in input_arrays(problem.inputs).items() if name != "query_offset"}
    if vector.form == "heads" and "cotangent" in given:
        given["cotangent"] = split_heads(given["cotangent"], problem.config.num_heads)
    given |= dict(zip(COMBINED, (wanted.where, problem.padding()), strict=True))
    codes = {"f": FLOATS[vector.dtype], "i": "I32", "b": "BOOL"}
    for name, array in given.items():
        found[f"inputs/{name}"] = codes[array.dtype.kind], array
    for name, array in problem.weights.items():
        found[f"weights/{name}"] = FLOATS[vector.dtype], array
    right = wanted.trace.arrays()
    for name in vector.names(wanted):
        array, allowed = right[name], wanted.allowed_error[name]
        if name == "scores":
            array, allowed = np.where(wanted.where, array, 0.0), np.where(wanted.where, allowed, np.inf)
        if name == "output" and vector.form == "heads":
            array, allowed = (split_heads(one, problem.config.num_heads) for one in (array, allowed))
        found[f"expected/{name}"], found[f"allowed/{name}"] = ("F64", array), ("F32", rounded_up(allowed))
    return found


def rounded_up(allowed: NDArray) -> NDArray[np.float32]:
    """Return allowed errors in float32, rounded up; 0 stays 0.

    >>> rounded_up(np.array([0.0, 1.0, 1e-60, np.inf])).tolist() == [0.0, 1.0, 2.0**-149, np.inf]
    True
    """
    with any_numbers:
        near = np.asarray(allowed, np.float32)
        return np.where(near < allowed, np.nextafter(near, np.float32(np.inf)), near)


class Revealing:
    """A search for the bugs that test vectors reveal. Call `of` for the vectors in the order of `all_vectors`.

    To save time, a bug that changes nothing in one dtype of a case is not tried in the next dtype. This is done only
    if the inputs of both dtypes have the same mask, and NaN and infinities at the same places.
    """

    def __init__(self, bugs: Sequence[Bug]) -> None:
        self._bugs = bugs
        self._last: tuple[object, set[Bug]] = (), set()

    def of(self, vector: Vector, wanted: Expected) -> dict[str, list[int]]:
        """Return "output" or "gradients" of a vector -> positions (in `bugs`) of bugs that change it beyond its bounds.

        Bugs in "output" are not listed in "gradients" again.
        """
        shows, problem = Shows.of(wanted, vector.dtype, ("output",)), wanted.problem
        gradients = problem.inputs.cotangent is not None
        can_show = set(bugs_of(parts=bool(problem.config.parts), gradients=gradients))
        places = [np.isfinite(array).tobytes() for array in problem.inputs.leaves().values()]
        alike = vector.form, vector.case.id, wanted.where.tobytes(), places
        inert = self._last[1] if self._last[0] == alike else set()
        found: dict[str, list[int]] = {"output": [], "gradients": []}
        with any_numbers:
            for number, bug in enumerate(self._bugs):
                if bug not in can_show or (bug in inert and not (gradients and bug.backward)):
                    continue
                try:
                    stage = shows.first_difference(bug)
                except DoesNotApply:  # by its sizes, which are the same in all dtypes
                    shows.inert.add(bug)
                    continue
                if stage is not None:
                    found["gradients" if stage == GRADIENTS else "output"].append(number)
        self._last = alike, inert | shows.inert
        return found
