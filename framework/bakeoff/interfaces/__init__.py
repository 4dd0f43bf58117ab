"""The interfaces: all that a plugin author must read. Names load when asked for, so that light commands stay light."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bakeoff.interfaces.attention_op import AttentionOp
    from bakeoff.interfaces.backbone import Backbone
    from bakeoff.interfaces.balance import Balance
    from bakeoff.interfaces.block import Block
    from bakeoff.interfaces.command import Command
    from bakeoff.interfaces.component import Capabilities, Component, Reference
    from bakeoff.interfaces.context import LayerContext, Shared
    from bakeoff.interfaces.converter import Converter
    from bakeoff.interfaces.corpus import Corpus
    from bakeoff.interfaces.cut import Cut, Share
    from bakeoff.interfaces.dialogue import Dialogue, Encoded, Row, Turn
    from bakeoff.interfaces.embedder import Embedder
    from bakeoff.interfaces.executor import Executor, Outcome
    from bakeoff.interfaces.feed_forward import FeedForward
    from bakeoff.interfaces.head import Head
    from bakeoff.interfaces.mixer import SequenceMixer
    from bakeoff.interfaces.neighbours import Neighbours
    from bakeoff.interfaces.norm import Norm
    from bakeoff.interfaces.objective import Feedback, Objective, Statistics, Terms, TokenLosses
    from bakeoff.interfaces.page import Page
    from bakeoff.interfaces.part import Part, StatefulPart
    from bakeoff.interfaces.past import Entries, Past
    from bakeoff.interfaces.policy import Collecting, PolicyObjective
    from bakeoff.interfaces.position import PositionalEncoding
    from bakeoff.interfaces.result import Result
    from bakeoff.interfaces.retriever import Found, Index, Retriever, Texts
    from bakeoff.interfaces.reward import Reward, Sample
    from bakeoff.interfaces.router import Router, Routing, Slots
    from bakeoff.interfaces.sampler import Sampler
    from bakeoff.interfaces.schedule import Schedule
    from bakeoff.interfaces.sequence import Need, Sequence
    from bakeoff.interfaces.state import Blocks
    from bakeoff.interfaces.strategy import Strategy
    from bakeoff.interfaces.task import Answer, Figure, Progress, Task
    from bakeoff.interfaces.template import Template
    from bakeoff.interfaces.tokenizer import Tokenizer

_MODULES = {
    "Answer": "task",
    "AttentionOp": "attention_op",
    "Backbone": "backbone",
    "Balance": "balance",
    "Block": "block",
    "Blocks": "state",
    "Capabilities": "component",
    "Collecting": "policy",
    "Command": "command",
    "Component": "component",
    "Converter": "converter",
    "Corpus": "corpus",
    "Cut": "cut",
    "Dialogue": "dialogue",
    "Embedder": "embedder",
    "Encoded": "dialogue",
    "Entries": "past",
    "Executor": "executor",
    "FeedForward": "feed_forward",
    "Feedback": "objective",
    "Figure": "task",
    "Found": "retriever",
    "Head": "head",
    "Index": "retriever",
    "LayerContext": "context",
    "Need": "sequence",
    "Neighbours": "neighbours",
    "Norm": "norm",
    "Objective": "objective",
    "Outcome": "executor",
    "Page": "page",
    "Part": "part",
    "Past": "past",
    "PolicyObjective": "policy",
    "PositionalEncoding": "position",
    "Progress": "task",
    "Reference": "component",
    "Result": "result",
    "Retriever": "retriever",
    "Reward": "reward",
    "Router": "router",
    "Routing": "router",
    "Row": "dialogue",
    "Sample": "reward",
    "Sampler": "sampler",
    "Schedule": "schedule",
    "Sequence": "sequence",
    "SequenceMixer": "mixer",
    "Share": "cut",
    "Shared": "context",
    "Slots": "router",
    "StatefulPart": "part",
    "Statistics": "objective",
    "Strategy": "strategy",
    "Task": "task",
    "Template": "template",
    "Terms": "objective",
    "Texts": "retriever",
    "TokenLosses": "objective",
    "Tokenizer": "tokenizer",
    "Turn": "dialogue",
}

__all__ = [
    "Answer", "AttentionOp", "Backbone", "Balance", "Block", "Blocks", "Capabilities", "Collecting", "Command",
    "Component", "Converter", "Corpus", "Cut", "Dialogue", "Embedder", "Encoded", "Entries", "Executor",
    "FeedForward", "Feedback", "Figure", "Found", "Head", "Index", "LayerContext", "Need", "Neighbours", "Norm",
    "Objective", "Outcome", "Page", "Part", "Past", "PolicyObjective", "PositionalEncoding", "Progress", "Reference",
    "Result", "Retriever", "Reward", "Router", "Routing", "Row", "Sample", "Sampler", "Schedule", "Sequence",
    "SequenceMixer", "Share", "Shared", "Slots", "StatefulPart", "Statistics", "Strategy", "Task", "Template",
    "Terms", "Texts", "TokenLosses", "Tokenizer", "Turn",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'bakeoff.interfaces' has no attribute {name!r}")
    return getattr(importlib.import_module(f"bakeoff.interfaces.{_MODULES[name]}"), name)
