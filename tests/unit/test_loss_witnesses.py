"""Decision about silent nodes: a table of testimonies, and the property that one fault never loses a healthy node."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyward_core.node.agent.peer_heartbeats import LOSS_SECONDS, MAX_REPORT_AGE, Witness, judge_nodes
from tests.support.examples import examples

SILENT = LOSS_SECONDS + 0.1


def client(*silences: float) -> Witness:
    return Witness("client", "client", dict(enumerate(silences)))


def peer(node: int, silences: dict[int, float], age: float = 0.0, place: str = "") -> Witness:
    return Witness(f"node {node}", place or f"node {node}", silences, node, age)


@pytest.mark.parametrize(
    ("node", "witnesses", "state"),
    [
        (1, [client(0.1, 5.0), peer(0, {1: 4.2})], "lost"),
        (1, [client(0.1, 3.9), peer(0, {1: 4.2})], "suspected"),
        (1, [client(0.1, 5.0), peer(0, {1: 1.9})], "present"),  # nobody cuts a node that a peer sees
        (1, [client(0.1, 60.0)], "present"),  # a cut of the client
        (1, [client(60.0, 60.0), peer(0, {1: 60.0}, age=MAX_REPORT_AGE + 0.1)], "present"),  # a client that sees nobody
        (1, [client(0.1, 0.1), peer(0, {1: 60.0})], "present"),  # a cut between two nodes
        (1, [client(0.1, 5.0), peer(0, {})], "present"),  # a firewall between the nodes
        (1, [client(0.1, 5.0), peer(0, {1: 5.0}, place="client")], "present"),  # a client on the machine of node 0
        (1, [client(0.1, 5.0, 0.1), peer(0, {1: 5.0, 2: 5.0})], "present"),  # the peer itself is cut off
        (1, [client(0.1, 5.0, 0.1), peer(0, {1: 5.0, 2: 0.5}), peer(2, {0: 0.5, 1: 5.0})], "lost"),
        (1, [client(0.1, 5.0, 0.1), peer(0, {1: 5.0, 2: 0.5}), peer(2, {0: 0.5, 1: 0.5})], "present"),
        (1, [client(0.1, 5.0, 5.0), peer(0, {1: 5.0, 2: 5.0})], "present"),  # most of the gang is silent
        (1, [client(0.1, 5.0, 5.0, 0.1), peer(0, {1: 5.0, 2: 5.0, 3: 0.4})], "lost"),
        (1, [client(0.1, 5.0, 0.1), peer(1, {0: 9.0, 2: 9.0})], "present"),  # the node about itself
        (1, [client(0.1, 5.0), peer(0, {1: 4.5}), peer(2, {0: 9.0, 1: 1.0}, age=2.5)], "suspected"),
        (1, [peer(0, {1: 4.5, 2: 0.1}), peer(2, {0: 0.3, 1: 4.4})], "lost"),  # without a client
        (1, [peer(0, {1: 60.0})], "present"),  # without a client, in a gang of two nodes
        (1, [client(0.1, 5.0), Witness("ranks of node 0", "collective", {1: 4.0}, 0)], "lost"),
    ],
)  # fmt: skip
def test_node_is_lost_by_two_witnesses(node: int, witnesses: list[Witness], state: str) -> None:
    verdict = judge_nodes([node], witnesses)[node]
    assert verdict.state == state
    assert set(verdict.silences) == {each.name for each in witnesses if node in each.silences and each.node != node}


CLIENT = -1  # the client's place in the network


@st.composite
def single_faults(draw: st.DrawFn) -> tuple[int, int, set[frozenset[int]]]:
    """Draw the size of a gang, the place of the fault, and the pairs of places that do not reach each other."""
    size = draw(st.integers(2, 9))
    place = draw(st.integers(CLIENT, size - 1))
    others = [other for other in range(CLIENT, size) if other != place]
    cut = others if draw(st.booleans()) else draw(st.sets(st.sampled_from(others), min_size=1))
    return size, place, {frozenset((place, other)) for other in cut}


def draw_testimonies(data: st.DataObject, size: int, cuts: set[frozenset[int]], *, off: int = -2) -> list[Witness]:
    """Draw the testimonies of the client and of all nodes whose answers reach it. ``off``: node without power.

    The client may run on the machine of a node.
    """
    host = data.draw(st.integers(CLIENT, size - 1), label="machine of the client")

    def is_cut(one: int, other: int) -> bool:
        one, other = (host if place == CLIENT else place for place in (one, other))
        return off in (one, other) or (one != other and frozenset((one, other)) in cuts)

    found = []
    for place in range(CLIENT, size):
        watched = {node for node in range(size) if node != place}
        if place != CLIENT:
            watched -= data.draw(st.sets(st.integers(0, size)), label="not watched")
        silences = {n: data.draw(st.floats(SILENT, 99) if is_cut(place, n) else st.floats(0, 1.9)) for n in watched}
        if place == CLIENT:
            found.append(client(*(silences[node] for node in range(size))))
        elif not is_cut(CLIENT, place):
            found.append(peer(place, silences, data.draw(st.floats(0, 2)), "client" if place == host else ""))
    return found


@given(single_faults(), st.data())
@settings(max_examples=examples(300))
def test_single_fault_in_the_network_loses_no_other_node(
    fault: tuple[int, int, set[frozenset[int]]], data: st.DataObject
) -> None:
    size, place, cuts = fault
    verdicts = judge_nodes(range(size), draw_testimonies(data, size, cuts))
    assert {node for node, verdict in verdicts.items() if verdict.state == "lost"} <= {place}


@given(st.integers(2, 9), st.data())
@settings(max_examples=examples(100))
def test_node_without_power_is_lost_if_another_machine_watched_it(size: int, data: st.DataObject) -> None:
    off = data.draw(st.integers(0, size - 1), label="node without power")
    found = [each for each in draw_testimonies(data, size, set(), off=off) if each.node != off]
    watchers = [each for each in found if each.place != "client" and off in each.silences and each.is_credible]
    assert (judge_nodes([off], found)[off].state == "lost") is bool(watchers)
