"""Runs side by side: never more than cores, GPUs and memory hold, never fewer than there is room for."""

from hypothesis import given
from hypothesis import strategies as st

from harness.study.slots import Machine, Need, Placed, place

NEEDS = st.builds(
    Need,
    cores=st.integers(1, 6),
    gpus=st.integers(0, 3),
    memory_bytes=st.floats(1, 50),
    gpu_memory_bytes=st.floats(0, 60),
)
MACHINES = st.builds(
    Machine,
    cores=st.integers(1, 16),
    memory_bytes=st.floats(10, 200),
    gpus=st.integers(0, 4).map(lambda count: tuple(str(i) for i in range(count))),
    gpu_memory_bytes=st.floats(30, 100),
    runs_per_gpu=st.integers(1, 4),
    slots=st.one_of(st.none(), st.integers(1, 5)),
)


@given(MACHINES, st.lists(NEEDS, max_size=20))
def test_nothing_is_given_twice(machine: Machine, needs: list[Need]) -> None:
    running: list[Placed] = []
    for need in needs:
        placed = place(machine, running, need)
        if placed is None:
            continue
        assert len(set(placed.gpus)) == need.gpus
        running.append(placed)
    if len(running) > 1:
        assert sum(item.need.memory_bytes for item in running) <= machine.memory_bytes
        if machine.slots is None:
            assert sum(item.need.cores for item in running) <= machine.cores
        else:
            assert len(running) <= machine.slots
    for gpu in machine.gpus:
        users = [item for item in running if gpu in item.gpus]
        assert len(users) <= machine.runs_per_gpu
        if len(users) > 1:
            assert sum(item.need.gpu_memory_bytes for item in users) <= machine.gpu_memory_bytes


@given(MACHINES, NEEDS)
def test_a_run_alone_starts_whatever_the_estimates_say(machine: Machine, need: Need) -> None:
    assert (place(machine, [], need) is not None) == (len(machine.gpus) >= need.gpus)


def filled(machine: Machine, need: Need) -> list[Placed]:
    running: list[Placed] = []
    while (placed := place(machine, running, need)) is not None:
        running.append(placed)
    return running


def test_cores_slots_memory_and_gpus_each_set_the_limit() -> None:
    one = Need(cores=2, gpus=0, memory_bytes=10)
    assert len(filled(Machine(cores=9, memory_bytes=1000), one)) == 4
    assert len(filled(Machine(cores=9, memory_bytes=35), one)) == 3
    assert len(filled(Machine(cores=9, memory_bytes=1000, slots=6), one)) == 6
    on_gpu = Need(cores=1, gpus=1, memory_bytes=1, gpu_memory_bytes=30)
    box = Machine(cores=64, memory_bytes=1000, gpus=("0", "1"), gpu_memory_bytes=80)
    assert [item.gpus for item in filled(box, on_gpu)] == [("0",), ("1",)]
    shared = Machine(cores=64, memory_bytes=1000, gpus=("0", "1"), gpu_memory_bytes=80, runs_per_gpu=4)
    assert [item.gpus for item in filled(shared, on_gpu)] == [("0",), ("1",), ("0",), ("1",)]
    pair = Need(cores=2, gpus=2, memory_bytes=1, gpu_memory_bytes=30)
    assert [item.gpus for item in filled(box, pair)] == [("0", "1")]
