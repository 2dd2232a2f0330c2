"""Run the printed code of the rows that the command was asked, as it stands and mended, each with new modules.

`python -m tests.mha.invariants.heldout.codes FOLDER`, where FOLDER is what `measure --command --keep FOLDER` wrote.
"""

import contextlib
import io
import json
import sys
import traceback
from pathlib import Path

from tests.mha.invariants.heldout.rows import PACKAGE, rows

OURS = ("torch_layers", "torch_decoders", "hf_faults", "numpy_functions")


def run(code):
    """Return what is printed, or the error."""
    for name in OURS:
        sys.modules.pop(f"{PACKAGE}.{name}", None)
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(code, {})
        return out.getvalue().strip()
    except Exception:
        return "ERROR " + traceback.format_exc().strip().splitlines()[-1][:100]


def main(folder):
    """Print a line for each piece of code."""
    for row in rows():
        if row.module not in OURS:
            continue
        try:
            answer = json.loads((folder / f"{row.id}.command.json").read_text())
        except FileNotFoundError:
            continue
        for one in answer.get("results", []):
            if one["status"] != "broken" or not one["code"]:
                continue
            code = one["code"]
            plain = run(code)
            mended = plain
            if plain.startswith("ERROR"):
                if row.module == "numpy_functions":
                    code = code.replace("inputs = ...", f"inputs = {row.name}()[1] #").replace("n01()", "n01()")
                code = code.replace(f"model = {row.name}()", f"model, inputs = {row.name}()").replace(
                    "inputs = ...", "#"
                )
                if row.step:
                    code = f"from {PACKAGE}.{row.module} import {row.step} as step\n" + code
                if row.name == "d08":
                    code = code.replace("model, inputs =", "model =")
                mended = run(code)
            try:
                same = abs(float(mended) - one["error"]) <= 1e-3 * abs(one["error"])
            except ValueError:
                same = False
            print(
                row.number,
                row.id,
                one["id"],
                f"{one['error']:.3g}",
                "|",
                plain[:60],
                "|",
                mended[:70],
                "" if same else "DIFFERS",
                flush=True,
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
