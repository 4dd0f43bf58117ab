"""The words and sentences of corpus `reviews`."""

#: What is reviewed -> parts of it.
THINGS = {
    "kettle": ("lid", "handle", "switch", "spout", "cord"),
    "tent": ("zip", "groundsheet", "frame", "door", "carrying bag"),
    "novel": ("plot", "ending", "dialogue", "middle chapter", "translation"),
    "film": ("script", "music", "camera work", "second half", "leading role"),
    "jacket": ("lining", "collar", "stitching", "hood", "inner pocket"),
    "lamp": ("shade", "base", "dimmer", "light", "joint"),
    "headset": ("sound", "cable", "cushion", "hinge", "microphone"),
    "hotel": ("breakfast", "bed", "service", "garden room", "bar"),
    "bicycle": ("saddle", "gear shift", "brake", "bell", "paint"),
    "camera": ("lens", "screen", "battery", "menu", "grip"),
    "cookbook": ("layout", "index", "soup chapter", "paper", "advice"),
    "suitcase": ("lock", "wheel", "shell", "strap", "divider"),
}

#: Choices for the places of a form.
WORDS = {
    "good": (
        "sturdy", "lovely", "superb", "pleasant", "dependable", "delightful", "excellent", "clever", "splendid",
        "charming", "wonderful", "thoughtful", "impressive", "first rate", "convincing",
    ),
    "bad": (
        "flimsy", "dreadful", "poor", "awkward", "shoddy", "tiresome", "terrible", "clumsy", "useless", "dismal",
        "disappointing", "careless", "irritating", "third rate", "unconvincing",
    ),
    "very": ("very", "really", "quite", "truly", "remarkably", "simply"),
    "who": ("sister", "neighbour", "father", "aunt", "friend", "colleague", "daughter", "landlord"),
    "day": ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"),
    "month": ("january", "march", "april", "june", "august", "october", "november", "december"),
    "place": ("the harbour", "a small town", "the old mill", "the station", "a village in the hills", "the market"),
    "colour": ("green", "dark blue", "grey", "red", "white", "brown"),
    "number": ("two", "three", "four", "five", "six", "ten"),
}  # fmt: skip

#: The first sentence of a review.
OPENINGS = (
    "i came across this {thing} in {month}.",
    "my {who} gave me this {thing} on a {day}.",
    "this is the {colour} {thing} that was shown near {place}.",
    "we have had the {thing} since {month}.",
    "a few words about a {thing} from {place}.",
    "this {thing} replaced one that was {number} years old.",
)

#: Sentences that say nothing of the polarity.
OTHERS = (
    "it came on a {day}.",
    "my {who} lives near {place} and has the same one.",
    "there is a {colour} one as well.",
    "the {part} and the {other} are described on page {number}.",
    "we were {number} people at the time.",
    "i write this in {month}, after {number} weeks.",
    "the shop is close to {place}.",
    "my {who} asked about the {part}.",
    "for the record, it is the {colour} version.",
)

_BOTH = (
    "the {part} is {very} {fit}.",
    "i find the {part} {fit}.",
    "how {fit} the {part} is!",
    "my {who} called the {part} {fit}, and so do i.",
    "the {part} is not {unfit} at all.",
    "nobody could call the {part} {unfit}.",
    "there is nothing {unfit} about the {part}.",
    "i expected the {part} to be {unfit}, and i was wrong.",
    "although the {other} seemed {unfit}, it is the {fit} {part} that counts.",
    "the {other} may be {unfit}, but the {part} is {very} {fit}.",
    "my {who} thinks the {other} {unfit}, yet the {part} is {fit} and that decides it.",
)

#: Sentences that speak of the polarity: of unfavourable reviews, and of favourable ones.
SAYINGS = (
    (
        *_BOTH,
        "i sent it back after {number} days.",
        "i would not buy it again.",
        "i regretted it within {number} days.",
        "even my {who}, who likes everything, did not like it.",
        "save your money.",
    ),
    (
        *_BOTH,
        "i kept it, and bought {number} more.",
        "i would not part with it.",
        "i have not regretted it for one day.",
        "even my {who}, who likes nothing, liked it.",
        "worth all of the money.",
    ),
)
