"""`mha phrase`: how two frameworks' attention layers say the same thing."""

from mha.cli import options
from mha.cli.common import consoles, finish, say
from mha.cli.options import Options, argument


class PhraseOptions(Options):
    """The arguments and options of `mha phrase`."""

    old: str | None = argument(required=False, metavar="[FROM]")
    new: str | None = argument(required=False, metavar="[TO]")
    about: tuple[str, ...] = options.several("--about", help="Only this concept, by name or heading (repeatable).")


@options.command(PhraseOptions, "mha phrase torch.nn.MultiheadAttention keras --about padding")
def phrase(asked: PhraseOptions) -> None:
    """Translate the use of attention FROM one framework TO another: construction, call, masks, weights.

    FROM and TO are names such as torch.nn.MultiheadAttention, keras or jax.nn. Without them, all names are listed.
    """
    from mha.phrases import text
    from mha.phrases.table import find
    from mha_core import SpecError

    console, _ = consoles()
    if asked.old is None:
        say(console, *text.listing(), "", "mha phrase FROM TO")
    elif asked.new is None:
        raise SpecError(
            f"mha phrase {asked.old} needs a second name, such as mha phrase torch keras; `mha phrase` lists them"
        )
    else:
        say(console, *text.pair(find(asked.old), find(asked.new), asked.about))
    finish(different=False)
