"""The backends under test: all four, unless `--backends` names fewer. One that cannot load is a failure."""

import ctypes
import gc
import os
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import pytest

BACKENDS = tuple(sorted(path.parent.name for path in Path(__file__).parent.glob("backends/*/backend.py")))
"""Those of this repository: others may be installed beside them."""

# What TensorFlow would log while it runs.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# OpenMP's threads sleep where they have nothing to do. They would wait in a loop for what comes next, and as several
# programs share the processors here, for most of the time that PyTorch takes. What they compute is the same.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Commands run in the process that tests them, which has its frameworks already; tests/conformance/workers has its own.
os.environ.setdefault("MHA_WORKERS", "0")

# Several programs share the processors here: a framework takes ten times as long to be imported as on an idle machine.
os.environ.setdefault("MHA_IMPORT_LIMIT", "300")

# NumPy's own, of OpenBLAS, would wait in a loop whatever that says: products and decompositions of arrays as small as
# those here have one thread, as in a worker of `mha`, and take two thirds of the processor time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Thousands of small programs are compiled here. XLA's older code generator, in one thread and without LLVM's
# optimisation, takes a third of the time for them: what it is given, the graph with its fusions, is the same.
XLA_FLAGS = (
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
    "--xla_backend_optimization_level=0",
)
os.environ.setdefault("XLA_FLAGS", " ".join(XLA_FLAGS))

# Python looks at all objects for cycles, and frameworks have hundreds of thousands: it looks a fourteenth as often.
gc.set_threshold(10_000)

# The tests start hundreds of processes: what Python compiles of a module, it keeps for all of them.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Tests compile what they judge, and leave nothing in the user's folder.
os.environ["MHA_COMPILE_CACHE"] = "off"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backends",
        default=",".join(BACKENDS),
        help="the backends under test, separated by commas (default: %(default)s)",
    )


def _names(config: pytest.Config) -> list[str]:
    names = config.getoption("--backends").split(",")
    unknown = sorted(set(names) - set(BACKENDS))
    if unknown:
        raise pytest.UsageError(f"--backends: {unknown[0]!r} is not known (known: {', '.join(BACKENDS)})")
    return names


@cache
def _readers_of_one() -> dict[str, str]:
    """The file of a module that imports one framework, to read and write its files -> its backend."""
    from mha.formats import FORMATS

    return {
        f"{form.module.replace('.', '/')}.py": form.framework for form in FORMATS if form.framework and form.writes_with
    }


ROOMS = ("mha_core", "conformance", "backends", "mha")
"""The packages whose examples are tests."""


def _of_others(config: pytest.Config) -> set[str]:
    """Files and folders of the backends that are not under test."""
    others = [name for name in BACKENDS if name not in _names(config)]
    own = {f"{folder}/{name}" for name in others for folder in ("backends", "tests/backends")}
    own |= {f"mha/learn/answers/in_{name}.py" for name in others}
    return own | {path for path, name in _readers_of_one().items() if name in others}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what no test of this run needs: it would be imported, and searched for examples.

    That is what belongs to one backend alone, if that one is not under test; what is nightly as a whole, by day; and
    modules with neither tests nor an example.
    """
    path = collection_path.relative_to(config.rootpath).as_posix()
    if path in _of_others(config) or (path in NIGHTLY and _by_day(config) and not _is_named(collection_path, config)):
        return True
    is_test = collection_path.name.startswith("test_") or collection_path.is_dir()
    return None if is_test or collection_path.suffix != ".py" or _has_example(collection_path) else True


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """A file of tests is searched for examples where it has one: what it defines takes a second to look through."""
    found = yield
    return [one for one in found if type(one) is pytest.Module or _has_example(file_path)]


def _has_example(path: Path) -> bool:
    return ">>>" in path.read_text("utf-8")


def _by_day(config: pytest.Config) -> bool:
    return "nightly" not in config.getoption("markexpr")


def _is_named(path: Path, config: pytest.Config) -> bool:
    """Return whether an argument of pytest names this file or folder, or something in it."""
    named = (config.invocation_params.dir / text.partition("::")[0] for text in config.args)
    return any(one == path or path in one.parents for one in named)


@pytest.fixture(scope="session")
def module_names(request: pytest.FixtureRequest) -> list[str]:
    """Every module of the packages, but for those of backends that are not under test."""
    root, others = request.config.rootpath, _of_others(request.config)
    paths = (path.relative_to(root) for room in ROOMS for path in sorted((root / room).rglob("*.py")))
    own = [path for path in paths if not others & {path.as_posix(), *(part.as_posix() for part in path.parents)}]
    return [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in own]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend_name" in metafunc.fixturenames:
        same = metafunc.definition.get_closest_marker("same_on_newest_of")
        marks = {name: [pytest.mark.same_on_newest] for name in (same.args if same else ())}
        names = [pytest.param(name, marks=marks.get(name, ())) for name in _names(metafunc.config)]
        metafunc.parametrize("backend_name", names)


NIGHTLY = {
    "tests/backends/jax/test_probes.py": "probes of deviations see them",
    "tests/backends/tf/test_probes.py": "probes of deviations see them",
    "tests/backends/torch/test_probes.py": "probes of deviations see them",
    "tests/backends/test_linear_memory.py": "memory grows with the length, and not with its square",
    "tests/conformance/calibration": "no right formulation is outside its bound",
    "tests/conformance/conditions": "the cases meet nearly every condition of a user's call",
    "tests/conformance/diagnosis/test_bugs_in_other_code.py": "bugs of other people's code are named",
    "tests/conformance/heldout": "the held-out layers are what they say, and are measured as docs/experiments.md says",
    "tests/conformance/subjects/test_native_subjects.py": "what frameworks' own layers do otherwise is listed",
    "tests/conformance/test_fast_branches.py": "the fast path's cases take every branch",
    "tests/conformance/test_twice.py": "the same question has the same answer to the bit",
    "tests/conformance/zoo/test_twice.py": "two cases or more show every bug of the zoo",
    "tests/docs/test_layer_page.py": "the page of one layer in five dialects is what runs",
    "tests/fuzz": "no odd call and no damaged file gives a wrong number or a traceback",
    "tests/lessons": "every notebook runs, and its exercises are judged rightly",
    "tests/mha/convert/test_convert_decoders.py": "a decoder's layers are converted as its family computes them",
    "tests/mha/learn/test_beginners.py": "a beginner's wrong answer is named",
    "tests/mha/learn/test_solutions.py": "other people's right answers are right",
    "tests/mha/port/test_decoder.py": "SmolLM2 gives its own text with each backend's attention",
    "tests/mha/port/test_decoder_families.py": "each family of decoders is ported",
    "tests/mha/port/test_decoder_folders.py": "folders of decoders are ported or refused",
    "tests/mha/recipes/test_decoders.py": "each family of decoders is read as it computes",
    "tests/mha/recordings/test_stock_layers.py": "frameworks' own layers are recorded as they compute",
    "tests/mha/test_fifth_backend.py": "a fifth backend is added as its page says",
}
"""Tests that take minutes -> the promise that they protect; those with the mark `nightly` are others."""


def _is_daily(item: pytest.Item, number: int, but: tuple[str, ...] = (), every: int | None = None) -> bool:
    """Return whether a test with the mark `nightly` runs by day too: an id in `but`, or one of `every` so many."""
    call = getattr(item, "callspec", None)
    return call is not None and (call.id in but or (every is not None and number % every == 0))


def _promise(item: pytest.Item) -> str:
    """Return the promise that a nightly test protects, by its mark, by NIGHTLY or for a browser; "" for others."""
    if "browser" in getattr(item, "fixturenames", ()):
        return "what a page draws is seen in a browser"
    if (mark := item.get_closest_marker("nightly")) and mark.args:
        return str(mark.args[0])
    path = item.path.relative_to(item.config.rootpath).as_posix()
    return next((promise for some, promise in NIGHTLY.items() if path == some or path.startswith(f"{some}/")), "")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is nightly, whatever else `-m` says, unless it names that mark."""
    numbers: Counter[str] = Counter()
    unmet: dict[str, set[str]] = {}
    for item in items:
        name = item.nodeid.partition("[")[0]
        numbers[name] += 1
        mark = item.get_closest_marker("nightly")
        if mark and (call := getattr(item, "callspec", None)):
            unmet.setdefault(name, set(mark.kwargs.get("but", ()))).discard(call.id)
        if mark and _is_daily(item, numbers[name] - 1, **mark.kwargs):
            item.own_markers[:] = [own for own in item.own_markers if own.name != "nightly"]
        elif _promise(item):
            item.add_marker("nightly")
    some_alone = any("::" in given for given in config.args) or config.getoption("lf", default=False)
    if not some_alone and _names(config) == list(BACKENDS):
        for name in (name for name, ids in unmet.items() if ids):
            raise pytest.UsageError(f"{name}: {min(unmet[name])!r}, which is to run by day, is no id of its tests")
    if _by_day(config):
        nightly = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A red nightly test says which promise is broken."""
    report = yield
    if report.failed and (promise := _promise(item)):
        report.sections.append(("the promise that this protects", promise))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Python looks for no cycles while it imports what is tested: it would look at all objects, a dozen times."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """The modules that are there now stay, and Python need not look for cycles among their objects any more."""
    gc.collect()
    gc.freeze()


MOST_BYTES = 2_500_000_000
"""Of memory that a process of tests takes before JAX is told to forget its programs."""


@pytest.fixture(autouse=True, scope="module")
def _programs_end_where_they_take_too_much() -> Iterator[None]:
    """JAX keeps every program that it compiled: thousands of them would take gigabytes, and some are used again."""
    yield
    if "jax" in sys.modules and _resident_bytes() > MOST_BYTES:
        sys.modules["jax"].clear_caches()
        _give_back()


def _give_back() -> None:
    """Memory that is free goes to the system: it would count, and JAX forget its programs after every module."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:  # glibc alone has it
        trim(0)


def _resident_bytes() -> float:
    """The memory that this process takes now; where that can't be read, as if it were all there is."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return float("inf")
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="session")
def backend_names(request: pytest.FixtureRequest) -> list[str]:
    return _names(request.config)


@pytest.fixture
def backend(backend_name: str):
    """One loaded backend."""
    from mha_core.backend import load

    return load(backend_name)
