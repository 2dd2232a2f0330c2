"""Score functions, scales and dropout."""

from conformance.cases.parts import case

CASES = [
    case(
        "dropout",
        "weights dropped without rescaling, or shared by heads",
        dropout=0.3,
        training=True,
        batch=4,
        valid_lens=[3, 7, 5, 0],
    ),
    case("dropout-off", "dropout that acts, or rescales, outside training", dropout=0.3, valid_lens=[3, 7]),
    case("dot", "an unscaled score that is scaled all the same", score="dot"),
    case("scale", "a given scale ignored", scale=0.5),
    case(
        "additive",
        "the additive score's matrices exchanged, or its tanh left out",
        score="additive",
        score_dim=8,
        valid_lens=[5, 0],
    ),
    case(
        "additive-grouped",
        "grouped heads under an additive score",
        num_heads=6,
        num_kv_heads=3,
        score="additive",
        score_dim=8,
    ),
]
