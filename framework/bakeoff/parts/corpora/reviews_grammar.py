"""The words and sentences of corpus `reviews`."""

#: What is spoken of in any review.
PARTS = ("price", "look", "size", "finish", "service", "packaging", "manual", "design")

#: Choices for the places of a form.
WORDS = {
    "thing": ("kettle", "tent", "jacket", "camera", "bicycle", "lamp", "chair", "radio"),
    "good": ("fine", "lovely", "superb", "pleasant", "neat", "clever", "great", "charming"),
    "bad": ("flimsy", "dreadful", "poor", "shoddy", "dull", "clumsy", "dismal", "horrible"),
    "very": ("very", "really", "truly"),
    "who": ("sister", "neighbour", "father", "friend", "daughter"),
    "month": ("january", "march", "june", "august", "october"),
    "place": ("the harbour", "the old mill", "the station", "the market"),
    "colour": ("green", "grey", "red", "white"),
    "number": ("two", "three", "four", "five"),
}

#: The first sentence of a review.
OPENINGS = (
    "i found this {thing} in {month}.",
    "my {who} gave me this {thing}.",
    "this is the {colour} {thing} from {place}.",
    "we have had the {thing} since {month}.",
)

#: Sentences that say nothing of the polarity.
OTHERS = (
    "there is a {colour} one as well.",
    "the {part} and the {other} are on page {number}.",
    "i write this after {number} weeks.",
    "the shop is near {place}.",
    "my {who} asked about the {part}.",
)

_BOTH = (
    "{fit}, {fit2} and {fit3}!",
    "{fit} {part}, {fit2} {other}.",
    "{part}: {fit}, {fit2}.",
    "the {part} is {fit} and {fit2}.",
    "i find the {part} {very} {fit}.",
    "the {part} is not {unfit} at all.",
    "nobody could call the {part} {unfit}.",
    "the {other} may be {unfit}, but it is the {fit} {part} that counts.",
)

#: Sentences that speak of the polarity: of unfavourable reviews, and of favourable ones.
SAYINGS = (
    (
        *_BOTH,
        "i sent it back after {number} days.",
        "i would not buy it again.",
        "even my {who}, who likes everything, did not like it.",
    ),
    (
        *_BOTH,
        "i bought {number} more.",
        "i would not part with it.",
        "even my {who}, who likes nothing, liked it.",
    ),
)
