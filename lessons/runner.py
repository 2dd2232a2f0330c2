"""Run the lessons of one framework in this process: `python lessons/runner.py numpy out.json out.npz [LESSON ...]`.

A lesson is a folder with `lesson.md`, and `in_NAME.py` for each framework: plain files in cells, `# %% name`, which
import nothing of this project. What each cell prints goes to the JSON file, by lesson and cell; the arrays that RESULTS
names go to the other, as LESSON/CALL/NAME.
"""

import contextlib
import gc
import io
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent

RESULTS = {
    "kernel": {
        "kernel": "queries keys values scale=1/0.5**2 bias weights output=estimate",
        "attention": "queries keys values scale=1/0.5**2 bias weights=attention output",
    },
    "angle": {
        "circle": "queries=query keys=vectors values=vectors scale=1 weights output",
        "long": "queries=query keys=longer values=longer scale=1 weights=long_weights output=long_output",
        "several": "queries keys=vectors values=vectors scale=1 weights=all_weights output=outputs",
        "additive": "queries=query keys=longer values=longer score.query.weight=w_q score.key.weight=w_k "
        "score.vector=vector scores=additive_scores weights=additive_weights output=additive_weights@longer",
    },
    "scaling": {
        "one": "queries keys values=keys scale=1 scores weights output=weights@keys",
        "hundred": "queries=long_queries keys=long_keys values=long_keys scale=1 scores=long_scores "
        "weights=long_weights output=long_weights@long_keys",
        "scaled": "queries=long_queries keys=long_keys values=long_keys weights=scaled_weights "
        "output=scaled_weights@long_keys",
    },
    "softmax": {
        "factors": "queries=factors keys=offered values=offered scale=1 weights=shares output=mean",
        "rows": "queries keys values=keys scale=1 scores weights output=weights@keys",
    },
    "masks": {
        "open": "queries=x keys=x values=x weights=everything output=everything@x",
        "causal": "queries=x keys=x values=x allowed=causal weights=causal_weights output=causal_output",
        "lengths": "queries=x keys=x values=x allowed=lengths weights=length_weights output=length_output",
        "empty": "queries keys values scale=1 allowed weights=guarded output",
    },
    "projections": {
        "alone": "queries=x keys=x values=x weights=alone output=alone_output",
        "projected": "queries=x keys=x values=x weights output "
        "q_proj.weight=w_q k_proj.weight=w_k v_proj.weight=w_v out_proj.weight=w_o",
        "learned": "queries=x keys=x values=x weights=learned output=learned@v "
        "q_proj.weight=learned_q k_proj.weight=learned_k v_proj.weight=w_v out_proj.weight=w_o",
    },
    "heads": {
        "loop": "queries=x keys=x values=x num_heads=3 output=summed "
        "q_proj.weight=fused_q k_proj.weight=fused_k v_proj.weight=fused_v out_proj.weight=w_o",
        "fused": "queries=x keys=x values=x num_heads=3 weights heads output "
        "q_proj.weight=fused_q k_proj.weight=fused_k v_proj.weight=fused_v out_proj.weight=w_o",
    },
    "layer": {
        "first": "queries=queries[0] keys=keys[0] values=keys[0] num_heads=5 allowed=allowed[0] weights=weights[:5] "
        "heads=heads[:5] output=output[0] "
        "q_proj.weight=w_q k_proj.weight=w_k v_proj.weight=w_v out_proj.weight=w_o",
        "second": "queries=queries[1] keys=keys[1] values=keys[1] num_heads=5 allowed=allowed[5] weights=weights[5:] "
        "heads=heads[5:] output=output[1] "
        "q_proj.weight=w_q k_proj.weight=w_k v_proj.weight=w_v out_proj.weight=w_o",
        "class": "queries=queries[0] keys=keys[0] values=keys[0] num_heads=5 allowed=allowed[0] output=made[0] "
        "q_proj.weight=w_q k_proj.weight=w_k v_proj.weight=w_v out_proj.weight=w_o",
        "grouped": "queries=projected_q[0][:,:80] keys=projected_k[0][:,:40] values=projected_v[0][:,:40] "
        "num_heads=4 num_kv_heads=2 output=grouped",
    },
    "positions": {
        "without": "queries=vectors keys=vectors values=vectors weights output",
        "with": "queries=x keys=x values=x weights=seen_weights output=seen table",
    },
    "block": {
        "words": "queries=x keys=x values=x num_heads=8 weights heads output "
        "q_proj.weight=w_q k_proj.weight=w_k v_proj.weight=w_v out_proj.weight=w_o first hidden result",
        "cross": "queries=first keys=read values=read num_heads=8 weights=cross_weights output=cross "
        "q_proj.weight=w_q k_proj.weight=w_k v_proj.weight=w_v out_proj.weight=w_o",
    },
    "own": {
        "whole": "queries=x keys=x values=x num_heads=4 weights output importance "
        "q_proj.weight=w_q k_proj.weight=w_k v_proj.weight=w_v out_proj.weight=w_o",
        "cut": "queries=x keys=x values=x num_heads=2 weights=cut_weights output=cut "
        "q_proj.weight=cut_q k_proj.weight=cut_k v_proj.weight=cut_v out_proj.weight=cut_o",
    },
}
"""Lesson -> call of attention in it -> what it hands out, in every framework: NAME=EXPRESSION, of the variables that
stand after the last cell. NAME alone stands for NAME=NAME. Names that are no part of a call are for plots.
"""


def lessons() -> tuple[str, ...]:
    """Return the names of the lessons: of the folders that hold a text."""
    return tuple(sorted(path.parent.name for path in HERE.glob("*/lesson.md")))


def cells_of(source: str) -> dict[str, str]:
    """Return the cells of a file by name, in their order. ValueError if a name occurs twice, or code is in no cell.

    >>> cells_of("# %% one" + chr(10) + "x = 1" + chr(10) + "# %% two" + chr(10) + "print(x)")
    {'one': 'x = 1', 'two': 'print(x)'}
    """
    head, *parts = re.split(r"^# %% *(.*)$", source, flags=re.MULTILINE)
    if head.strip():
        raise ValueError(f"code before the first cell: {head.strip().splitlines()[0]!r}")
    names = [name.strip() for name in parts[::2]]
    for name in names:
        if not name or names.count(name) > 1:
            raise ValueError(f"cells need names of their own. Got {name!r} {names.count(name)} times.")
    return {name: code.strip() for name, code in zip(names, parts[1::2], strict=True)}


def run(lesson: str, framework: str, folder: Path = HERE) -> tuple[dict[str, str], dict[str, NDArray]]:
    """Run one lesson. Return dicts: name of a cell -> what the cell prints, and CALL/NAME -> array.

    Raises:
        RuntimeError: a cell raises; the message names lesson, framework and cell.
    """
    path = folder / lesson / f"in_{framework}.py"
    printed: dict[str, str] = {}
    module = sys.modules[f"lesson_{lesson}"] = ModuleType(f"lesson_{lesson}")  # a class finds its annotations there
    namespace = module.__dict__
    try:
        cells = cells_of(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RuntimeError(f"{lesson}, {framework}: {error}") from error
    for name, code in cells.items():
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out):
                exec(compile(code, f"{path.name}, cell {name}", "exec"), namespace)
        except (Exception, SystemExit) as error:
            raise RuntimeError(f"{lesson}, {framework}, cell {name!r}: {type(error).__name__}: {error}") from error
        printed[name] = out.getvalue()
    if lesson not in RESULTS:
        raise RuntimeError(f"{lesson}, {framework}: RESULTS does not say what it hands out")
    arrays = {}
    for call, text in RESULTS[lesson].items():
        for word in text.split():
            name, _, expression = word.partition("=")
            arrays[f"{call}/{name}"] = _as_numpy(eval(expression or name, namespace))
    return printed, arrays


def _as_numpy(value: Any) -> NDArray:
    """An array of any framework, or a number."""
    return value.asnumpy() if hasattr(value, "asnumpy") else np.asarray(value)


def main(framework: str, texts: str, arrays: str, *names: str) -> None:
    """Run these lessons, or all, and write the two files."""
    printed, found = {}, {}
    for name in names or lessons():
        printed[name], given = run(name, framework)
        found.update({f"{name}/{key}": array for key, array in given.items()})
    Path(texts).write_text(json.dumps(printed), "utf-8")
    np.savez(arrays, **found)


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file, whose folders are no modules
    try:
        main(*sys.argv[1:])
    except RuntimeError as error:
        sys.exit(str(error))
    gc.freeze()  # nothing is left to be looked for cycles: that takes TensorFlow a second
