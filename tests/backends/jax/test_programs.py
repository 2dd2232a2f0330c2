"""Compiled programs that are kept: the same bits, made anew where anything of them is wrong."""

import os
import pickle
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from backends.jax import backend as jax_backend
from backends.jax import programs
from backends.jax.backend import JaxBackend
from backends.jax.layers import MultiHeadAttention
from backends.jax.programs import accepted, exact, kept_in
from conformance.cases.table import select
from mha_core.config import ProjectionBias
from mha_core.files.kept import Kept, pieces


@pytest.fixture
def compilations(monkeypatch):
    """The programs that XLA compiles, one entry each; none is known from other tests."""
    import jax

    jax_backend.options_for("cpu")  # compiles something to learn which options there are
    made = []
    own = jax.stages.Lowered.compile
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda *args, **told: made.append(1) or own(*args, **told))
    return made


@pytest.fixture
def traced(monkeypatch):
    """The calls that JAX traces, one entry each; there are several for a program."""
    made = []
    for method in ("stages", "attend"):
        own = getattr(MultiHeadAttention, method)
        monkeypatch.setattr(
            MultiHeadAttention, method, lambda *args, own=own, **told: made.append(1) or own(*args, **told)
        )
    return made


def answers(folder, *cases, dtype="float32", path="compiled"):
    """The arrays of each case, from a backend that knows no program but those in `folder`."""
    jax_backend._program.cache_clear()
    backend = JaxBackend()
    backend.use_cache(folder)
    found = []
    for case in select(cases):
        problem = case.build().rounded(dtype)
        run = backend.prepare(problem.config, problem.weights, dtype=dtype, path=path)
        for _ in range(2):
            arrays = run(problem.inputs).arrays()
            found.append({name: array.tobytes() for name, array in arrays.items()})
    return found


@pytest.mark.nightly("kept programs harm nobody", every=2)
@pytest.mark.parametrize(("dtype", "path"), [("float32", "compiled"), ("float64", "fast")])
def test_a_program_that_was_kept_gives_the_same_bits_and_is_not_made_again(tmp_path, compilations, traced, dtype, path):
    """It is found before anything is traced."""
    cases = "ragged-square", "dropout", "past"
    without = answers(None, *cases, dtype=dtype, path=path)
    assert not compilations  # those of plain jax.jit are not counted
    assert answers(tmp_path, *cases, dtype=dtype, path=path) == without
    assert len(compilations) == 3
    assert len(list(pieces(tmp_path))) == 6  # each program, and where it is found before it is traced
    assert traced
    traced.clear()
    assert answers(tmp_path, *cases, dtype=dtype, path=path) == without
    assert not traced
    assert len(compilations) == 3


CHANGES = "our code", "a library", "a setting of JAX", "a setting of Flax", "an environment variable"


@pytest.mark.nightly("kept programs harm nobody", every=3)
@pytest.mark.parametrize("changed", CHANGES)
def test_where_something_else_is_traced_nothing_is_found_before(tmp_path, traced, monkeypatch, changed):
    import flax
    import jax

    wanted = answers(tmp_path, "ragged-square")
    traced.clear()
    match changed:
        case "our code":
            monkeypatch.setattr(programs, "CODE", "other")
        case "a library":
            monkeypatch.setattr(programs, "libraries", lambda: "other")
        case "a setting of JAX":
            with jax.numpy_dtype_promotion("strict"):
                assert answers(tmp_path, "ragged-square") == wanted
        case "a setting of Flax":
            with flax.config.temp_flip_flag("preserve_adopted_names", True):
                assert answers(tmp_path, "ragged-square") == wanted
        case "an environment variable":
            monkeypatch.setenv("JAX_MADE_UP", "1")
    if "setting" not in changed:
        assert answers(tmp_path, "ragged-square") == wanted
    assert traced


@pytest.mark.nightly("kept programs harm nobody")
def test_each_dtype_path_rule_and_layer_has_a_program_of_its_own(tmp_path, compilations):
    """Nothing that one of them kept may be found by another."""
    asked = [("float32", "compiled"), ("float32", "fast"), ("float64", "fast")]
    wanted = {each: answers(tmp_path, "prime", "causal", dtype=each[0], path=each[1]) for each in asked}
    assert len(compilations) == 6
    for each in asked:
        assert answers(tmp_path, "prime", "causal", dtype=each[0], path=each[1]) == wanted[each]
        assert answers(None, "prime", "causal", dtype=each[0], path=each[1]) == wanted[each]
    assert len(compilations) == 6


def test_a_layer_that_no_text_says_is_found_by_its_program_alone(tmp_path, compilations, traced, monkeypatch):
    monkeypatch.setattr(jax_backend, "origin", lambda layer, path: None)
    wanted = answers(tmp_path, "ragged-square")
    assert len(list(pieces(tmp_path))) == 1
    traced.clear()
    assert answers(tmp_path, "ragged-square") == wanted
    assert traced
    assert len(compilations) == 1


def test_no_two_values_have_one_text():
    values = [None, "None", True, 1, 1.0, -0.0, 0.0, "1", (1,), ((1,),), (1, 1), "(1,)", {"a": 1}, (("a", 1),)]
    values += [np.dtype("float32"), jnp.dtype("bfloat16"), np.float32, ProjectionBias(), ProjectionBias(True)]
    assert len({exact(value) for value in values}) == len(values)
    for unknown in (print, np.zeros(2), object(), [lambda: 0]):
        with pytest.raises(TypeError, match="no exact text"):
            exact(unknown)


@pytest.mark.parametrize("kind", ["program", "source"])
def test_a_damaged_piece_is_made_again_and_put_in_its_place(tmp_path, compilations, traced, kind):
    wanted = answers(tmp_path, "ragged-square")
    found = sorted((status.st_size, path) for path, status in pieces(tmp_path))
    path = found[kind == "program"][1]  # a program is larger than where it is found
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    traced.clear()
    assert answers(tmp_path, "ragged-square") == wanted
    assert traced
    traced.clear()
    assert answers(tmp_path, "ragged-square") == wanted
    assert not traced
    assert len(compilations) == (2 if kind == "program" else 1)


def test_where_nothing_can_be_written_it_is_compiled(tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("no folder")
    assert answers(in_the_way, "ragged-square") == answers(None, "ragged-square")


ONE_OF_TWO = """
import hashlib, sys
from pathlib import Path
from backends.jax.backend import JaxBackend
from conformance.cases.table import select
backend = JaxBackend()
backend.use_cache(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for case in select(("ragged-square", "square-causal", "past")):
    problem = case.build().rounded("float32")
    arrays = backend.prepare(problem.config, problem.weights, dtype="float32")(problem.inputs).arrays()
    print({name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in arrays.items()})
"""


@pytest.mark.nightly("kept programs harm nobody")
def test_two_processes_write_one_folder_at_once(tmp_path, compilations):
    command = [sys.executable, "-c", ONE_OF_TWO, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, **pipes) for _ in range(2)]
    assert [process.stdout.readline() for process in both] == ["ready\n"] * 2
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0] == said[1]
    assert len(list(pieces(tmp_path))) == 6  # none twice, and none that is half written
    cases = "ragged-square", "square-causal", "past"
    assert answers(tmp_path, *cases) == answers(None, *cases)
    assert not compilations


def test_programs_as_users_compile_them_are_kept_apart(tmp_path, compilations):
    assert JaxBackend().as_users_run("compiled") == "optimized"
    assert JaxBackend().as_users_run("eager") == "eager"
    fast = answers(tmp_path, "prime")
    slow = answers(tmp_path, "prime", path="optimized")
    assert len(compilations) == 2
    assert set(fast[0]) == set(slow[0])
    assert answers(tmp_path, "prime", path="optimized") == slow
    assert len(compilations) == 2


def test_an_option_that_jaxlib_does_not_know_is_left_out():
    known = dict(jax_backend.COMPILER_OPTIONS["cpu"])
    assert accepted(known) == known
    assert accepted({**known, "xla_cpu_of_another_version": True}) == known


def test_one_offset_of_all_queries_needs_no_program_of_its_own(tmp_path, compilations):
    answers(tmp_path, "causal", "causal-bottom-right", "causal-offset-per-item")
    assert len(compilations) == 1


def test_programs_of_other_versions_flags_and_options_are_not_found(tmp_path, monkeypatch):
    versions = {"jax": "1", "jaxlib": "1"}
    folders = [kept_in(tmp_path, versions, {}).folder for _ in range(2)]
    folders.append(kept_in(tmp_path, {**versions, "jaxlib": "2"}, {}).folder)
    folders.append(kept_in(tmp_path, versions, {"option": 1}).folder)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    folders.append(kept_in(tmp_path, versions, {}).folder)
    assert len(set(folders)) == 4


def test_layers_of_equal_config_share_their_programs(tmp_path, compilations):
    """Those of "prime" serve "inputs-x0.03", whose numbers alone are others; "causal" has a rule of its own."""
    answers(tmp_path, "prime", "inputs-x0.03")
    assert len(compilations) == 1
    answers(tmp_path, "prime", "causal")
    assert len(compilations) == 2


def test_keeping_programs_changes_no_setting_of_jax(tmp_path):
    import jax

    before = dict(jax.config.values)
    answers(tmp_path, "ragged-square")
    assert dict(jax.config.values) == before


def test_a_piece_that_is_a_pickle_runs_nothing(tmp_path, compilations):
    """It is made anew."""

    class Command:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "it-ran"),)

    first = answers(tmp_path, "prime")
    found = [path for path, _ in pieces(tmp_path)]
    (key,) = (data[32:].decode() for path in found if len(data := path.read_bytes()) < 200)
    Kept(found[0].parent).put(key, pickle.dumps(Command()))
    assert answers(tmp_path, "prime") == first
    assert len(compilations) == 2
    with pytest.raises(ValueError, match="."):
        programs.read(pickle.dumps(Command()), jax_backend.framework.device_of("cpu"))
    assert not (tmp_path / "it-ran").exists()
