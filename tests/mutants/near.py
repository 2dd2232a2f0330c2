"""Which tests are run for a mutant: those nearest to its module first, then wider ones."""

from pathlib import Path

WIDER = {
    "mha_core": (
        ("tests/core",),
        ("tests/conformance/judging", "tests/conformance/bounds", "tests/conformance/subjects"),
        ("tests/conformance/test_runner.py", "tests/conformance/cases"),
        ("tests/backends/test_call_kinds.py", "tests/backends/test_errors.py", "-k", "torch or mxnet"),
        ("tests/backends/test_parity.py", "-k", "torch or mxnet"),
        ("tests/backends/torch", "tests/backends/mxnet"),
        ("tests/mha/convert", "tests/mha/formats", "tests/mha/recordings"),
    ),
    "backends/torch": (("tests/backends", "-k", "torch"), ("tests/mha/convert", "tests/mha/recordings", "-k", "torch")),
    "backends/tf": (("tests/backends", "-k", "tf"), ("tests/mha/convert", "tests/mha/recordings", "-k", "tf")),
    "backends/jax": (("tests/backends", "-k", "jax"), ("tests/mha/convert", "tests/mha/recordings", "-k", "jax")),
    "backends/mxnet": (("tests/backends", "-k", "mxnet"), ("tests/mha/convert", "tests/mha/recordings", "-k", "mxnet")),
    "backends": (("tests/backends",),),
    "conformance": (
        ("tests/conformance/judging", "tests/conformance/bounds"),
        ("tests/conformance/test_runner.py", "tests/conformance/reports", "tests/conformance/deviations"),
        ("tests/conformance/zoo", "tests/conformance/calibration"),
        ("tests/conformance/workers",),
    ),
    "mha": (("tests/mha/convert", "tests/mha/port"), ("tests/mha/formats", "tests/mha/infer", "tests/mha/cli")),
}
"""Where a module's path begins -> stages of tests; the longest beginning that fits counts."""


def stages(root: Path, module: str) -> list[tuple[str, ...]]:
    """The arguments of pytest, stage by stage, for a module such as "mha_core/call/masks.py"."""
    path = Path(module)
    package, *folders = path.parent.parts
    mirrored = Path("tests", "core" if package == "mha_core" else package, *folders)
    named = [mirrored / f"test_{path.stem}.py", *mirrored.glob(f"test_*{path.stem}*.py")]
    near = [str(one) for one in dict.fromkeys(named) if (root / one).exists()]
    while not (root / mirrored).is_dir():
        mirrored = mirrored.parent
    folder = (str(mirrored),) if len(mirrored.parts) > 2 else ()
    first = (module, *near)  # its examples, and the tests of its name
    begins = max((known for known in WIDER if module.startswith(known)), key=len)
    return [stage for stage in dict.fromkeys((first, folder, *WIDER[begins])) if stage]
