"""`mha phrase`: how two frameworks' attention layers say the same thing, or one's own call in another's words."""

from __future__ import annotations

from pathlib import Path

from mha.cli import options
from mha.cli.common import consoles, finish, say
from mha.cli.options import Options, argument, option


class PhraseOptions(Options):
    """The arguments and options of `mha phrase`."""

    old: str | None = argument(required=False, metavar="[FROM]")
    new: str | None = argument(required=False, metavar="[TO]")
    about: tuple[str, ...] = options.several("--about", help="Only this concept, such as padding (repeatable).")
    call: Path | None = options.any_path("--from", metavar="CALL.py", help="A file that makes and calls one layer.")
    to: str | None = option("--to", metavar="TO", help="With --from: the layer to write it for.")


@options.command(PhraseOptions)
def phrase(asked: PhraseOptions) -> None:
    r"""Say in the words of one framework's attention what another's says: construction, call, masks, weights.

    FROM and TO are names such as torch.nn.MultiheadAttention, keras or jax.nn; without them all are listed. With
    --from, the layer that CALL.py makes and calls is written down for TO, with masks turned where True means the
    other thing, and what could not be translated. CALL.py is read, not run.

    \b
      mha phrase torch.nn.MultiheadAttention keras --about padding
      mha phrase --from CALL.py --to flax
    """
    from mha.phrases import text
    from mha.phrases.reading import read_file
    from mha.phrases.table import find
    from mha.phrases.translate import translate
    from mha_core import SpecError

    console, _ = consoles()
    if asked.call is not None:
        target = asked.to or asked.old
        if target is None or (asked.to and asked.old):
            raise SpecError("--from CALL.py needs --to TO, and nothing besides")
        new = find(target)
        source = read_file(asked.call)
        say(console, *text.translated(source, new, translate(source, new)))
    elif asked.to:
        raise SpecError("--to needs --from CALL.py. Without a file: mha phrase FROM TO")
    elif asked.old is None:
        say(console, *text.listing(), "", "mha phrase FROM TO, or mha phrase --from CALL.py --to TO")
    elif asked.new is None:
        raise SpecError(f"mha phrase {asked.old} needs the layer to go to as well: mha phrase FROM TO")
    else:
        say(console, *text.pair(find(asked.old), find(asked.new), asked.about))
    finish(different=False)
