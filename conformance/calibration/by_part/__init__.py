"""Parts of attention in every way in which they may be computed, each part in a file of its name.

A module has what it needs of these:

    SPACE     choice -> its options, for the problems of calibration: a piece of `calibration.space.WIDE`
    WAYS      choice -> way -> the formulations that go it, one after the other; the others go the plain way
    between   (config, state of the reference) -> the arrays that some way leaves in between
"""

ORDER = ("softcap", "rotary", "query_key_norm")
"""The order in which `mha calibrate --list` names ways; one that is not named comes last."""
