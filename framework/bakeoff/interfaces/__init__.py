"""The interfaces: all that a plugin author must read."""

from bakeoff.interfaces.attention_op import AttentionOp
from bakeoff.interfaces.backbone import Backbone
from bakeoff.interfaces.block import Block
from bakeoff.interfaces.command import Command
from bakeoff.interfaces.component import Capabilities, Component, Reference
from bakeoff.interfaces.context import LayerContext, Shared
from bakeoff.interfaces.corpus import Corpus
from bakeoff.interfaces.executor import Executor, Outcome
from bakeoff.interfaces.feed_forward import FeedForward
from bakeoff.interfaces.head import Head
from bakeoff.interfaces.mixer import SequenceMixer
from bakeoff.interfaces.norm import Norm
from bakeoff.interfaces.objective import Objective, Statistics, Terms, TokenLosses
from bakeoff.interfaces.page import Page
from bakeoff.interfaces.part import Part, StatefulPart
from bakeoff.interfaces.past import Entries, Past
from bakeoff.interfaces.position import PositionalEncoding
from bakeoff.interfaces.result import Result
from bakeoff.interfaces.sampler import Sampler
from bakeoff.interfaces.schedule import Schedule
from bakeoff.interfaces.sequence import Need, Sequence
from bakeoff.interfaces.tokenizer import Tokenizer

__all__ = [
    "AttentionOp", "Backbone", "Block", "Capabilities", "Command", "Component", "Corpus", "Entries", "Executor",
    "FeedForward", "Head", "LayerContext", "Need", "Norm", "Objective", "Outcome", "Page", "Part", "Past",
    "PositionalEncoding", "Reference", "Result", "Sampler", "Schedule", "Sequence", "SequenceMixer", "Shared",
    "StatefulPart", "Statistics", "Terms", "TokenLosses", "Tokenizer",
]  # fmt: skip
