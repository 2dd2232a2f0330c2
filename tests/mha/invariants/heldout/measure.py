"""What `mha invariants` finds in held-out programs: `python -m tests.mha.invariants.heldout.measure [open|hidden|all]`.

The rows, in `rows`, are programs with one planted fault, and right ones. Those at even places from 0 are "open", those
at odd places "hidden": these are not looked at while the invariants are built. Without a half, both are asked, and of
the hidden half counts alone are printed. Of each row:

- right: a relation is broken that the fault should break; another: others are; not seen: none is;
- silent: of a right model no relation is broken; alarm: one is;
- raised: no answer came, or not in time; not run: the process ended.

The rows of a group, those with the same imports, share a process. With `--command` each is asked by the command, in a
process of its own, and the first code that it prints is run. That the rows are what they say, is shown by `check_own`.
"""

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

from tests.mha.invariants.heldout.rows import PACKAGE, group, rows

ROOT = Path(__file__).parents[4]
HALVES = ("open", "hidden")
GROUPS = ("numpy", "torch", "hf", "flax", "keras", "mxnet")
LONGEST = 150
"""Seconds that a row may take."""


def late(*_):
    """Stop a row."""
    raise TimeoutError(f"the row took over {LONGEST} s")


def ask(row):
    """Ask one row in this process: the answer, and what is printed."""
    import mha

    module = importlib.import_module(f"{PACKAGE}.{row.module}")
    factory = getattr(module, row.name)
    answer = {"id": row.id, "how": "api"}
    text = ""
    signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST)
    try:
        first = factory()
        model, inputs = first if isinstance(first, tuple) else (first, None)
        options = {
            "make": lambda: factory()[0] if isinstance(first, tuple) else factory(),
            "named": f"{PACKAGE}.{row.module}:{row.name}",
        }
        if row.step:
            options["step"] = getattr(module, row.step)
        if row.causal is not None:
            options["causal"] = row.causal
        start, cpu = time.perf_counter(), time.process_time()
        report = mha.invariants(model, inputs, **options)
        answer["seconds"], answer["cpu"] = time.perf_counter() - start, time.process_time() - cpu
        text = str(report)
        names = ("id", "status", "reason", "error", "allowed", "sentence", "code")
        answer["results"] = [{name: getattr(one, name, None) for name in names} for one in report.results]
        for one in answer["results"]:
            one["status"] = str(getattr(one["status"], "value", one["status"]))
    except BaseException as error:
        answer["raised"] = f"{type(error).__name__}: {error}"
        text += "RAISED " + answer["raised"]
        if isinstance(error, KeyboardInterrupt):
            raise
    finally:
        signal.alarm(0)
    return json.loads(json.dumps(answer, default=float)), text + "\n"


def asked(chosen):
    """Ask rows in a process for each group: (row, answer, text), where the answer is None if the process ended."""
    for name in GROUPS:
        own = [row for row in chosen if group(row) == name]
        while own:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                while own:
                    row = own.pop(0)
                    try:
                        yield row, *pool.submit(ask, row).result()
                    except BrokenProcessPool:
                        yield row, None, "the process ended\n"
                        break


def command(row):
    """Ask one row through the command, in a process: the answer, and what is printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    at = f"{PACKAGE}.{row.module}"
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder) / "answer.json"
        call = [str(Path(sys.executable).with_name("mha")), "invariants", f"{at}:{row.name}", "--json", str(where)]
        if row.step:
            call += ["--cache", f"{at}:{row.step}"]
        if row.causal:
            call += ["--causal"]
        options = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True}
        start = time.perf_counter()
        done = subprocess.run(call, timeout=300, stdin=subprocess.DEVNULL, **options)
        seconds = time.perf_counter() - start
        answer = json.loads(where.read_text()) if where.exists() else {"raised": done.stderr.strip()[-200:]}
    answer |= {"id": row.id, "how": "command", "seconds": seconds, "exit": done.returncode, "codes": []}
    for one in answer.get("results", []):
        if one["status"] == "broken" and one["code"]:
            run = subprocess.run([sys.executable, "-c", one["code"]], timeout=120, **options)
            answer["codes"].append((one["id"], one["error"], run.stdout.strip() or run.stderr.strip()[-200:]))
            break
    return answer, f"{done.stdout}\nSTDERR\n{done.stderr[-2000:]}\nexit {done.returncode}\n"


def verdict(row, answer):
    """What became of a row: (word, broken ids)."""
    if answer is None:
        return "not run", []
    broken = [one["id"] for one in answer.get("results", []) if one["status"] == "broken"]
    if "raised" in answer:
        return "raised", broken
    if not row.expected:
        return "alarm" if broken else "silent", broken
    if any(one.startswith(row.expected) for one in broken):
        return "right", broken
    return "another" if broken else "not seen", broken


def line(row, answer):
    """One line about an answer."""
    word, broken = verdict(row, answer)
    answer = answer or {}
    times = f"{answer['seconds']:.1f} s" if "seconds" in answer else ""
    times += f", cpu {answer['cpu']:.1f} s" if "cpu" in answer else ""
    put = sum(one["status"] in ("holds", "broken", "known") for one in answer.get("results", []))
    more = "".join(f" {answer[key]}" for key in ("exit", "codes") if key in answer) + answer.get("raised", "")[:200]
    return f"{row.number:3} {row.half:6} {row.id:32} {word:9} {times:20} asked {put:2} {','.join(broken)}{more}"


def kept(folder, chosen, ending):
    """The answers of rows that a folder has: (row, answer, text)."""
    for row in chosen:
        path = folder / f"{row.id}{ending}.json"
        if path.exists():
            yield row, json.loads(path.read_text()), path.with_suffix(".txt").read_text()


def main(arguments=None):
    parser = argparse.ArgumentParser(prog=f"python -m {PACKAGE}.measure", description=__doc__.split("\n")[0])
    parser.add_argument("half", nargs="?", choices=(*HALVES, "all"), help="whose answers are printed (default: open)")
    parser.add_argument("--group", action="append", choices=GROUPS, help="this group alone (repeatable)")
    parser.add_argument("--id", action="append", default=[], help="this row alone (repeatable)")
    parser.add_argument("--command", action="store_true", help="ask through the command, a process each")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write the answers that are printed to this folder")
    parser.add_argument("--judge", type=Path, metavar="FOLDER", help="judge the answers kept there, and run nothing")
    options = parser.parse_args(arguments)
    run = HALVES if options.half in (None, "all") else (options.half,)
    told = ("open",) if options.half is None else run
    chosen = [row for row in rows() if row.half in run and group(row) in (options.group or GROUPS)]
    if unknown := sorted(set(options.id) - {row.id for row in chosen}):
        raise SystemExit(f"no row {unknown[0]!r} in this half (known: {', '.join(row.id for row in chosen)})")
    chosen = [row for row in chosen if not options.id or row.id in options.id]
    ending = ".command" if options.command else ""
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    if options.judge:
        answers = kept(options.judge, chosen, ending)
    else:
        answers = ((row, *command(row)) for row in chosen) if options.command else asked(chosen)
    totals = {}
    for row, answer, text in answers:
        kind = "fault" if row.expected else "right model"
        totals.setdefault((row.half, kind), []).append(verdict(row, answer)[0])
        if row.half not in told:
            continue
        print(line(row, answer), flush=True)
        if options.keep:
            (options.keep / f"{row.id}{ending}.txt").write_text(text)
            (options.keep / f"{row.id}{ending}.json").write_text(json.dumps(answer))
    for key, words in sorted(totals.items()):
        print(*key, len(words), {word: words.count(word) for word in sorted(set(words))})


if __name__ == "__main__":
    main()
