"""What refusals say: who uses what, in which words, and how long lists end."""

import pytest

from gpupolicy.api.conditions import Reason
from gpupolicy.core.inventory import ClaimUse, Process
from gpupolicy.core.refusals import Refusal, cards_text, listing, users, waiting
from tests.unit.core.builders import card, claim, instance


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, ""),
        (1, "0"),
        (6, "0, 1, 2, 3, 4, 5"),
        (7, "0, 1, 2, 3, 4, 5 and 1 more"),
        (9, "0, 1, 2, 3, 4, 5 and 3 more"),
    ],
)
def test_listing(count: int, text: str) -> None:
    assert listing(str(n) for n in range(count)) == text


@pytest.mark.parametrize(
    ("claims", "processes", "text"),
    [
        pytest.param((claim("a"),), (), "claim team-a/a (pod team-a/a-pod)", id="one-pod"),
        pytest.param((claim("a", "x", "y"),), (), "claim team-a/a (pods team-a/x, team-a/y)", id="pods"),
        pytest.param((ClaimUse("n", "a", "u"),), (), "claim n/a", id="no-pod-yet"),
        pytest.param((claim("web-0-gpu-x7k2p", "web-0"),), (), "pod team-a/web-0", id="made-for-one-pod"),
        pytest.param(
            (claim("web-0-gpu", "web-0", "x"),),
            (),
            "claim team-a/web-0-gpu (pods team-a/web-0, team-a/x)",
            id="shared",
        ),
        pytest.param((claim("a", "other/x"),), (), "claim team-a/a (pod other/x)", id="full-name-stays"),
        pytest.param((), (Process(1, "python"), Process(2)), "process 1 (python), process 2", id="processes"),
        pytest.param(
            (),
            tuple(Process(n) for n in range(8)),
            f"{', '.join(f'process {n}' for n in range(6))} and 2 more",
            id="many",
        ),
    ],
)
def test_users(claims, processes, text: str) -> None:
    assert users(claims, processes) == text


def test_pods_are_listed_once() -> None:
    refusal = Refusal(Reason.WAITING_FOR_CLAIMS, "", claims=(claim("a", "y", "x"), claim("b", "x")))

    assert refusal.pods == ("team-a/x", "team-a/y")


@pytest.mark.parametrize(
    ("used_by", "pid", "remedy"),
    [
        pytest.param("a", None, "delete those pods, or wait for their end", id="pods"),
        pytest.param(None, 1, "stop those processes, or wait for their end", id="processes"),
        pytest.param("a", 1, "delete those pods and stop those processes, or wait for their end", id="both"),
    ],
)
def test_the_remedy_fits_who_is_in_the_way(used_by: str | None, pid: int | None, remedy: str) -> None:
    busy = instance("1g.10gb@0", used_by=used_by, pid=pid)

    assert waiting(card(busy), (busy,)).message.endswith(f"Nothing in use is touched; {remedy}")


@pytest.mark.parametrize("whole_card", [False, True])
def test_users_of_the_whole_card_count_only_where_they_are_in_the_way(whole_card: bool) -> None:
    busy = instance("1g.10gb@0", used_by="small", pid=1)
    gpu = card(busy, claims=(claim("big"),), processes=(Process(2),))

    refusal = waiting(gpu, (busy,), whole_card=whole_card)

    assert [c.name for c in refusal.claims] == ["small", "big"][: 1 + whole_card]
    assert [p.pid for p in refusal.processes] == [1, 2][: 1 + whole_card]
    assert ("; the whole card, used by claim team-a/big" in refusal.message) is whole_card
    assert refusal.instances == (busy,)


def test_an_unused_whole_card_is_not_mentioned() -> None:
    busy = instance("1g.10gb@0", pid=1)

    assert "whole card" not in waiting(card(busy), (busy,), whole_card=True).message
    assert "whole card" not in waiting(card(busy, claims=(claim(),)), (busy,)).message


@pytest.mark.parametrize(
    ("indexes", "text"),
    [([3], "card 3"), ([0, 1, 2, 3, 5], "cards 0-3, 5"), ([7, 6], "cards 6-7"), ([0, 2], "cards 0, 2")],
)
def test_cards_text(indexes: list[int], text: str) -> None:
    assert cards_text(indexes) == text
