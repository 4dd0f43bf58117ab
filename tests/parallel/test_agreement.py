"""Ranks that were not started alike, and a port that is taken."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from bakeoff.parallel.agreement import Disagreement, agree, difference
from bakeoff.parallel.member import Member, NoMeeting
from torch.distributed import HashStore


def member(rank, size=3, port=1):
    return Member(rank, size, "127.0.0.1", port, device=f"cuda:{rank}", host=f"node{rank // 2}")


def outcomes(descriptions, **options):
    store = HashStore()

    def one(rank):
        try:
            return agree(store, member(rank, len(descriptions)), descriptions[rank], **options)
        except Disagreement as error:
            return str(error)

    with ThreadPoolExecutor(len(descriptions)) as pool:
        return list(pool.map(one, range(len(descriptions))))


def test_equal_descriptions_pass():
    assert outcomes([{"recipe": "abc", "newest checkpoint": "step 4"}] * 3) == [None] * 3


def test_every_rank_says_the_same_of_who_differs_in_what():
    same = {"recipe": "abc", "newest checkpoint": "step 4"}
    said = outcomes([same, same, {"recipe": "abd", "newest checkpoint": "step 4"}])
    assert said[0] == said[1] == said[2]
    assert said[0].endswith(
        "\n  recipe: abc on rank 0 (host node0, device cuda:0), rank 1 (host node0, device cuda:1); "
        "abd on rank 2 (host node1, device cuda:2)"
    )
    assert "checkpoint" not in said[0]


def test_what_only_some_have_is_told():
    assert difference(["rank 0", "rank 1"], [{"mesh": "data 2"}, {}]) == ["mesh: data 2 on rank 0; nothing on rank 1"]


def test_a_rank_that_does_not_come_is_named():
    store = HashStore()
    with pytest.raises(Disagreement, match=r"of 3 ranks, these did not come to 127\.0\.0\.1:1 within 0 s: 1, 2$"):
        agree(store, member(0), {}, seconds=0.2)


def test_a_port_in_use_is_one_clear_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(NoMeeting, match=rf"port {port} is in use by another program.*set MASTER_PORT"):
            member(0, port=port).meet(5.0)


def test_the_ranks_of_one_store_see_each_other():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    one = member(0, 2, port).meet(20.0)
    one.set("key", "value")
    assert member(1, 2, port).meet(20.0).get("key") == b"value"


def test_nobody_at_the_address_is_one_clear_error():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(NoMeeting, match=rf"rank 1 .* nobody answers at 127\.0\.0\.1:{port}.*MASTER_ADDR"):
        member(1, 2, port).meet(1.0)
