"""How far modules of right ports go from their originals in float64, and wrong ones: the figures of docs/where.md.

python -m tests.mha.substitution.calibrate --seeds 30
"""

import argparse
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np

import mha
from tests.mha.substitution.encoder.models import FAULTS, batch, original, state_of
from tests.mha.substitution.encoder.ports import PORTS, call
from tests.mha.substitution.formulas import DEVIATES, DTYPES, FRAMEWORKS, in_torch, ratios


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=30)
    seeds = parser.parse_args().seeds
    right: dict[str, list[float]] = defaultdict(list)
    wrong: dict[str, list[float]] = defaultdict(list)
    missed: list[str] = []
    derived: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "port.safetensors"
        for seed in range(100, 100 + seeds):
            model = original(seed)
            for number, (api, port) in enumerate(PORTS.items()):
                # Every port is tried right, and with one fault after the other.
                for fault in ("", list(FAULTS)[(seed + number) % len(FAULTS)]):
                    ported = port(state_of(model), fault)
                    with mha.capture(ported, path, modules=True, overwrite=True):
                        call(api, ported, seed)
                    report = mha.where(model, path, inputs=batch(seed))
                    expected = (FAULTS[fault][api],) if fault else ()
                    if report.wrong != expected:
                        missed.append(f"{api} {seed} {fault or 'right'}: {report.wrong}")
                    own = [one for one in report.results if one.ratio is not None]
                    right[api] += [float(one.ratio or 0.0) for one in own if one.status == "equal"]
                    derived += [one.bound for one in own if one.status == "equal" and one.bound is not None]
                    wrong[api] += [float(one.ratio or 0.0) for one in own if one.status == "wrong"]
    print("port    module calls  median    99 %   largest | wrong, smallest")
    for api in PORTS:
        share = np.quantile(right[api], [0.5, 0.99, 1.0])
        print(f"{api:8}{len(right[api]):12}{share[0]:8.2f}{share[1]:8.2f}{share[2]:10.2f} | {min(wrong[api]):.0f}")
    print(f"{sum(map(len, right.values()))} calls of right modules, {sum(map(len, wrong.values()))} of wrong ones")
    print(f"not as it should be: {missed or 'none'}")
    print(f"largest error over a derived bound: {max(derived):.2f}, in {len(derived)} modules")
    by_formula(seeds)


def by_formula(seeds: int) -> None:
    """Print the largest error over the derived bound of each formula, by dtype, of all frameworks."""
    print(f"\n{'formula':16}" + "".join(f"{dtype:>10}" for dtype in DTYPES["torch"]) + "   without a bound")
    for name in in_torch():
        largest, without, calls = [], 0, 0
        for dtype in DTYPES["torch"]:
            found = [
                ratio
                for seed in range(seeds)
                for framework, ratio in ratios(name, FRAMEWORKS, seed, dtype)
                if (framework, name, dtype) not in DEVIATES
            ]
            largest.append(max((one for one in found if one is not None), default=np.nan))
            without, calls = without + found.count(None), calls + len(found)
        print(f"{name:16}" + "".join(f"{one:10.3f}" for one in largest) + f"   {without} of {calls}")


if __name__ == "__main__":
    main()
