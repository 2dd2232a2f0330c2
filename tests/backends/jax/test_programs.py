"""Compiled programs that are kept: the same bits, made anew where anything of them is wrong."""

from __future__ import annotations

import pytest

from backends.jax import backend as jax_backend
from backends.jax.backend import JaxBackend
from backends.jax.programs import kept_in
from conformance.cases.table import select
from mha_core.files.kept import pieces


@pytest.fixture
def compilations(monkeypatch):
    """The programs that XLA compiles, one entry each; none is known from other tests."""
    import jax

    made = []
    own = jax.stages.Lowered.compile
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda *args, **told: made.append(1) or own(*args, **told))
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


@pytest.mark.parametrize(("dtype", "path"), [("float32", "compiled"), ("float64", "fast")])
def test_a_program_that_was_kept_gives_the_same_bits_and_is_not_compiled(tmp_path, compilations, dtype, path):
    cases = "ragged-square", "dropout", "past"
    without = answers(None, *cases, dtype=dtype, path=path)
    assert not compilations  # those of plain jax.jit are not counted
    assert answers(tmp_path, *cases, dtype=dtype, path=path) == without
    assert len(compilations) == len(list(pieces(tmp_path))) == 3
    assert answers(tmp_path, *cases, dtype=dtype, path=path) == without
    assert len(compilations) == 3


def test_a_damaged_program_is_compiled_again_and_put_in_its_place(tmp_path, compilations):
    wanted = answers(tmp_path, "ragged-square")
    (path, _) = next(pieces(tmp_path))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert answers(tmp_path, "ragged-square") == wanted
    assert answers(tmp_path, "ragged-square") == wanted
    assert len(compilations) == 2


def test_a_whole_piece_that_is_no_program_is_compiled_again(tmp_path, compilations, monkeypatch):
    wanted = answers(tmp_path, "ragged-square")
    monkeypatch.setattr("mha_core.files.kept.Kept.get", lambda self, key: b"something else")
    assert answers(tmp_path, "ragged-square") == wanted
    assert len(compilations) == 2


def test_where_nothing_can_be_written_it_is_compiled(tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("no folder")
    assert answers(in_the_way, "ragged-square") == answers(None, "ragged-square")


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
